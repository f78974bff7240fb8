"""A trial leaves all states as they were, also those that its graph alone has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.closeness import RETURNS
from paramgraph_kit.rewrite.proving.proof import Prover
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="how a trial is run is the same on a GPU")
FROZEN_FIRST = """
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=0.1, capturable=True)
class State:
    step = 0
state = State()
args = (torch.ones(3, 4, device=device),)
def f(x):
    opt.zero_grad(set_to_none=False)
    loss = net(x).pow(2).mean()
    if loss > 1e9:
        loss = loss * 0.5
    loss.backward()
    if state.step < 2:
        for p in net[-1].parameters():
            p.grad = None
    opt.step()
    state.step += 1
    return loss.detach()
"""


def test_a_layer_that_the_first_steps_leave_alone_is_as_it_was(tmp_path: Path) -> None:
    # GIVEN a head that is frozen for as many steps as a trial warms up
    names = run(FROZEN_FIRST, tmp_path)
    before = [p.detach().clone() for p in names["net"].parameters()]
    # WHEN a fix is tried
    pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN its weights are what they were
    for p, then in zip(names["net"].parameters(), before, strict=True):
        assert torch.equal(p, then)
    assert names["state"].step == 0


def test_what_the_graph_alone_writes_is_put_back() -> None:
    # GIVEN a state that a step's capture writes, and no eager step
    device: Any = pgk.device()
    state, x = torch.ones(3, device=device), torch.ones(3, device=device)

    def step(x: torch.Tensor) -> torch.Tensor:
        if pgk.cuda.is_current_stream_capturing():
            state.mul_(2)
        return x + state

    # WHEN its graph is replayed in a trial THEN the state is as before
    prover = Prover(step, (x,), {})
    prover.eager()
    prover.from_now().captured()
    assert state.tolist() == [1.0, 1.0, 1.0]


def test_a_trial_holds_nothing_of_what_it_has_made_itself() -> None:
    # GIVEN a step that makes tensors and writes to them, and one more that it leaves out of reach
    total, x = torch.zeros(256, device=pgk.device()), torch.ones(256, device=pgk.device())

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            part = torch.zeros_like(x)
            part.add_(x)
            total.add_(part)
        count: torch.Tensor = vars(torch.nn.functional).setdefault("_count_of_a_test", torch.zeros_like(x))
        count.add_(1)
        return total + count

    # WHEN it is run again and again
    try:
        prover = Prover(step, (x,), {})
        first = prover.eager()
        held = pgk.cuda.memory_allocated()
        again = [prover.eager() for _ in range(3)]
    finally:
        del vars(torch.nn.functional)["_count_of_a_test"]
    # THEN each run begins as the first, what is in reach is as it was, and no more memory is held than behind the first
    assert all(torch.equal(a, b) for each in again for a, b in zip(each[RETURNS], first[RETURNS], strict=True))
    assert not total.any()
    assert pgk.cuda.memory_allocated() == held
