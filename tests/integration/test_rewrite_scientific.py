"""Fixes of programs that simulate, filter, price, cluster and render."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver import host_random
from tests.integration.rewritten import Fixed, Program, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SOBOL = """\
engine = torch.quasirandom.SobolEngine(4, scramble=True, seed=1)
args = (torch.tensor(3.0, device=device),)
def f(s):
    u = engine.draw(8).to(device)
    return (s * u.sum(1)).mean().item() > 0
"""
EMPTY = """\
args = (torch.randn(20, 3, device=device), torch.randn(2, 3, device=device))
def f(x, centers):
    d = torch.cdist(x, centers)
    labels = d.argmin(1)
    new = torch.zeros_like(centers)
    for k in range(centers.size(0)):
        members = x[labels == k]
        if len(members) == 0:
            far = d.min(1).values.argmax()
            new[k] = x[far]
        else:
            new[k] = members.mean(0)
    return new
"""


def test_engine_of_sobol_points_is_put_back() -> None:
    # GIVEN an engine that has given some points
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=2)
    engine.draw(5)
    before = host_random.state_of(engine)
    # WHEN it gives more and is put back THEN it gives the same again
    then = engine.draw(4)
    assert host_random.state_of(engine) != before
    host_random.put_back(engine, before)
    assert torch.equal(engine.draw(4), then)


def test_diagnosis_leaves_an_engine_of_sobol_points_where_it_was(program: Program) -> None:
    # GIVEN a step that draws from one
    names = program(SOBOL)
    # WHEN it is diagnosed THEN the engine has given nothing
    pgk.diagnose(names["f"], *names["args"])
    assert names["engine"].num_generated == 0


def test_branch_that_no_call_takes_is_looked_up_on_the_device(fixed: Fixed) -> None:
    # GIVEN clusters of which none is empty, so that no call has shown that `x[far]` waits WHEN it is fixed
    fix = fixed(EMPTY)
    # THEN the row is found on the device, and what the loop counts with stays a number
    assert fix.complete, fix
    assert "new[k] = torch.where(chosen, x[far.reshape(1)][0], new[k])" in lines_of(fix)
