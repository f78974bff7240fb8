"""Simulations whose kick is a number of a method or a property, beside numbers that are the same in each step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HEATED = """
class Heated:
    def __init__(self):
        self.x, self.v = torch.randn(4, device=device), torch.zeros(4, device=device)
        self.f, self.dt, self.gamma = -self.x, 0.1, 0.5
        self.n, self.log = 0, []
    KIND
    def temperature(self):
        return 0.2 + 0.5 * min(1.0, self.n / 40)
    def step(self, noise):
        c = math.exp(-self.gamma * self.dt)
        FIRST
        self.v += self.dt * self.f
        self.v = c * self.v + math.sqrt((1 - c * c) * self.temperatureCALL) * noise
        self.x += self.dt * self.v
        self.f = -self.x
        self.n += 1
        if self.n % 3 == 0:
            self.v -= self.v.mean(0)
            self.log.append(self.v.pow(2).mean().item())
        return self.x
f = Heated().step
args = (torch.randn(4, device=device),)
"""
AHEAD = """\
if self.n % 4 == 0:
            self.x.clamp_(-2, 2)"""
OWN = "kick = math.sqrt((1 - c * c) * self.temperature())"


@pytest.mark.sweep
def test_kick_of_a_property_is_fed_and_the_branch_at_the_tail_goes_behind(tmp_path: Path) -> None:
    # GIVEN a kick of a property that reads a count, a decay that is always the same, and a branch at the tail
    text = HEATED.replace("KIND", "@property").replace("CALL", "").replace("        FIRST\n", "")
    # WHEN it is fixed THEN the kick is found before each launch, and nothing of the step is left out of it
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    added = lines_of(fix)
    assert "given_in.fill_(math.sqrt((1 - c * c) * self.temperature))" in added, fix
    assert added.count("c = math.exp(-self.gamma * self.dt)") == 1  # there, too, and the step keeps its own
    assert "self.v.copy_(c * self.v + given_in * noise)" in added


@pytest.mark.sweep
@pytest.mark.parametrize("named", [False, True])
def test_branch_ahead_of_a_kick_of_a_method_goes_before_the_launch(tmp_path: Path, named: bool) -> None:
    # GIVEN the same with a method, asked on a line of its own or not, and a branch that the step begins with
    text = HEATED.replace("    KIND\n", "").replace("CALL", "()").replace("FIRST", AHEAD)
    if named:
        text = text.replace("math.sqrt((1 - c * c) * self.temperature()) * noise", "kick * noise")
        text = text.replace("        self.v += self.dt", f"        {OWN}\n        self.v += self.dt")
    # WHEN it is fixed THEN both are done before the launch
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    assert "def before_step(self):  # before each launch" in lines_of(fix)
    assert "def after_step(self):  # after each launch" in lines_of(fix)


@pytest.mark.sweep
def test_decay_that_moves_is_no_number_to_be_found_twice(tmp_path: Path) -> None:
    # GIVEN the same of which a rate of decay gets another value in each step
    text = HEATED.replace("KIND", "@property").replace("CALL", "").replace("        FIRST\n", "")
    text = text.replace("        self.n += 1\n", "        self.n += 1\n        self.gamma *= 0.9\n")
    # WHEN it is fixed THEN the graph is given both, and keeps no decay
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    assert "self.v.copy_(c_in * self.v + given_in * noise)" in lines_of(fix), fix
