"""An argument that each call in the step gives alike decides nothing later; and a line keeps what a call returns."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

import paramgraph_kit as pgk
from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.always_given import is_always_so
from paramgraph_kit.doctor.observe.kept_results import kept_at
from paramgraph_kit.trace.model import Frame
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

DEVICE = pgk.device()
W = torch.randn(6, 3).to(DEVICE)


class _Last:
    chosen = torch.zeros(4, dtype=torch.long).to(DEVICE)


def act(x: torch.Tensor, action: torch.Tensor | None = None) -> torch.Tensor:
    draws = Categorical(logits=x @ W, validate_args=False)
    if action is None:
        action = draws.sample()  # type: ignore[no-untyped-call]
    return draws.log_prob(action).sum()  # type: ignore[no-any-return, no-untyped-call]


def given(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    np.random.shuffle(rows)
    return act(x[rows], _Last.chosen.long()[:2])


def handed(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    np.random.shuffle(rows)
    return act(x[rows], _Last.chosen[rows])


CALLS = {
    "something": ("asked(x[:2])", "def asked(a=None): return 1 if a is None else 2", True),
    "nothing": ("asked()", "def asked(a=None): return 1 if a is not None else 2", True),
    "a constant": ("asked(3)", "def asked(a=0): return 1 if a else 2", True),
    "rows of an argument": ("asked(x[x.argsort()])", "def asked(a=None): return 1 if a is None else 2", True),
    "an entry of what else": ("asked(W[x])", "def asked(a=None): return 1 if a is None else 2", False),
    "one and none": ("asked(x[:2]) + asked()", "def asked(a=None): return 1 if a is None else 2", False),
    "two constants": ("asked(3) + asked()", "def asked(a=0): return 1 if a else 2", False),
    "what may be None": ("asked(x.grad)", "def asked(a=None): return 1 if a is None else 2", False),
    "handed on": ("asked(x[:2]) + sum(map(asked, x))", "def asked(a=None): return 1 if a is None else 2", False),
}


@pytest.mark.parametrize(("call", "text", "expected"), CALLS.values(), ids=CALLS.keys())
def test_what_each_call_gives_decides_a_test(call: str, text: str, expected: bool, tmp_path: Path) -> None:
    # GIVEN a function that asks its argument, and a step that calls it
    file = tmp_path / "program.py"
    file.write_text(f"{text}\ndef step(x):\n    return {call}\n")
    names = load(file.read_text(), file)
    codes = [names["step"].__code__, names["asked"].__code__]
    test = next(n.test for n in nodes_of(codes[1]) if isinstance(n, ast.IfExp))
    # WHEN it is looked at THEN it is always so where all calls give what answers alike
    assert is_always_so(test, codes[1], codes, codes[0], ["x"]) is expected


@pytest.mark.sweep
def test_an_argument_that_each_call_gives_is_not_asked_for() -> None:
    # GIVEN a step that always gives an action, and one that gives what another object has, which may be None
    x = torch.randn(4, 6).to(DEVICE)

    # WHEN both are diagnosed
    always, whatever = pgk.diagnose(given, x, [0, 1]), pgk.diagnose(handed, x, [0, 1])

    # THEN the branch is told of the second alone
    assert "if action is None:" not in str(always), str(always)
    assert "if action is None:" in str(whatever)


@pytest.mark.parametrize(
    ("line", "copied"),
    [
        (
            "losses.append(t.step([d[i:i + 4] for d in data]))",
            "losses.append(t.step([d[i:i + 4] for d in data]).clone())",
        ),
        ("losses.append([t.step(d) for d in data])", "losses.append([t.step(d).clone() for d in data])"),
    ],
)
def test_a_result_is_copied_and_not_what_its_call_is_given(line: str, copied: str) -> None:
    # GIVEN a line that keeps the result of a step, which a comprehension gives its inputs, or calls
    def step(rows: list[torch.Tensor]) -> None: ...

    # WHEN it is told THEN what the step returns is copied
    told = kept_at("it is kept", Frame("loop.py", 3, "main", line), (), (step, None))
    assert told.fix == f"before  {line}\nafter   {copied}"
