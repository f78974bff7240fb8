"""Loops around a step that a decorator goes around: they are read as those around any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

DECORATORS = ["@torch.no_grad()", "@torch.inference_mode()", "@timed", "@torch.no_grad()\n    @timed"]
METHOD = """
import functools
def timed(function):
    @functools.wraps(function)
    def run(*args):
        return function(*args)
    return run
class Sim:
    def __init__(self):
        self.w, self.out = torch.ones(4, device=device), []
    {decorator}
    def step(self, x):
        return (x * self.w).sum()
def main():
    sim = Sim()
    for k in range(10):
        {line}
        print(k, sim.step(torch.full((4,), 0.1 * k, device=device)).item())
sim = Sim()
args = (torch.ones(4, device=device),)
"""


@pytest.mark.parametrize("decorator", DECORATORS)
def test_what_a_loop_sets_around_a_decorated_method_is_told(decorator: str, tmp_path: Path) -> None:
    # GIVEN a method in a decorator, and a loop in a function that nobody calls WHEN the method is diagnosed
    text = METHOD.format(decorator=decorator, line="sim.w = torch.full((4,), 1.0 + k, device=device)")
    names = load(PRELUDE + text, tmp_path / "program.py")
    (found,) = pgk.diagnose(names["sim"].step, *names["args"]).failures
    # THEN what the loop sets is told
    assert found.code == "stale-input"
    assert "self.w is set between calls" in found.message


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_loop_that_writes_in_place_around_a_decorated_method_has_no_problem(decorator: str, tmp_path: Path) -> None:
    # GIVEN the same with a loop that writes to the tensor WHEN diagnosed THEN nothing is found
    text = METHOD.format(decorator=decorator, line="sim.w.fill_(1.0 + k)")
    names = load(PRELUDE + text, tmp_path / "program.py")
    assert pgk.diagnose(names["sim"].step, *names["args"]).failures == ()


def test_gradients_that_a_loop_sets_to_none_around_a_decorated_function_are_told(tmp_path: Path) -> None:
    # GIVEN a decorated step, whose gradients a loop that nobody calls sets to None
    text = """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
@torch.enable_grad()
def step(x):
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()
def train():
    for k in range(9):
        opt.zero_grad()
        step(torch.ones(2, 4, device=device) * k)
args = (torch.ones(2, 4, device=device),)
step(*args)  # there are gradients by now
"""
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN diagnosed THEN that is found
    assert "gradients-rebound" in pgk.diagnose(names["step"], *names["args"]).codes
