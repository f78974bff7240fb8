"""What the host draws and copies to the device is told as both: a copy that waits, and numbers that replays keep."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.drawn_copies import SAYS
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def test_a_copy_of_what_is_drawn_says_so_and_others_do_not() -> None:
    # GIVEN an index that numpy draws, a table of constants, and a number that counts
    w, state = torch.randn(8, 3).to(DEVICE), {"n": 0}

    def f(x: torch.Tensor) -> torch.Tensor:
        idx = torch.from_numpy(np.random.randint(0, 8, 4)).to(DEVICE)
        m = torch.tensor([1.0, 2.0, 3.0]).to(DEVICE)
        t = torch.tensor([float(state["n"])]).to(DEVICE)
        state["n"] += 1
        return w[idx] * x * m + t

    # WHEN diagnosed THEN the copy of the index says that it is drawn, and neither of the others does
    found = pgk.diagnose(f, torch.ones(3, device=DEVICE))
    said = {each.frame.text[:3]: SAYS in each.message for each in found if each.frame and "tensor" in each.code}
    said |= {each.frame.text[:3]: SAYS in each.message for each in found if each.frame and each.code == "copy-to-gpu"}
    assert said == {"idx": True, "m =": False, "t =": False}, found


def test_a_copy_says_so_and_the_draw_is_noted_where_how_many_are_copied_moves_with_the_calls() -> None:
    # GIVEN an order that torch draws on the host, of which each call goes through more parts than the one before
    state = {"k": 2}

    def epoch(x: torch.Tensor) -> torch.Tensor:
        perm = torch.randperm(state["k"])
        for i in range(0, state["k"], 2):
            x = x + x[perm[i : i + 2].to(DEVICE)].sum()
        state["k"] = min(8, state["k"] + 2)
        return x

    # WHEN diagnosed THEN the copy says that it is drawn, and a note has the line that draws
    found = pgk.diagnose(epoch, torch.ones(8, device=DEVICE))
    assert [SAYS in f.message for f in found if f.code == "copy-to-gpu"] == [True], found
    note = next((each for each in found.notes if "the host draws at " in each), "")
    assert 'perm = torch.randperm(state["k"])' in note, found


def test_a_reset_by_an_own_generator_is_led_to_its_end_and_the_generator_is_as_before() -> None:
    # GIVEN pendulums of which none is done yet, which a generator of their own places anew
    rng = np.random.RandomState(3)
    env = SimpleNamespace(th=torch.zeros(4, device=DEVICE), n=torch.zeros(4, device=DEVICE), rng=rng)

    def step(a: torch.Tensor) -> torch.Tensor:
        env.th += a
        env.n += 1
        done = env.n > 100
        for i in done.nonzero().flatten().tolist():
            env.th[i] = float(env.rng.uniform(-1, 1))
            env.n[i] = 0.0
        scaled: torch.Tensor = env.th * 2.0
        return scaled

    before = pickle.dumps(rng.get_state(legacy=False))

    # WHEN diagnosed THEN both lines of the reset are told, the first with its draw, and nothing is drawn in the end
    found = pgk.diagnose(step, torch.ones(4, device=DEVICE))
    lines = {f.frame.text: f for f in found if f.frame and f.code == "scalar-assignment"}
    assert list(lines) == ["env.th[i] = float(env.rng.uniform(-1, 1))", "env.n[i] = 0.0"], found
    assert SAYS in lines["env.th[i] = float(env.rng.uniform(-1, 1))"].message
    assert SAYS not in lines["env.n[i] = 0.0"].message
    assert pickle.dumps(rng.get_state(legacy=False)) == before
