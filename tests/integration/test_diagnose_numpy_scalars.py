"""Numbers that are NumPy's scalars move as Python's do: set by loops and methods, given, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import numpy as np
import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
class Sampler:
    def __init__(self):
        self.net, self.temp, self.n = nn.Linear(4, 4).to(device), np.float32(2.0), np.int64(0)
    def step(self, x):
        return self.net(x) * self.temp
"""
AROUND = {
    "element": """
def anneal(sampler, x, rounds):
    temps = np.geomspace(2.0, 0.1, rounds)
    for i in range(rounds):
        sampler.temp = np.float32(temps[i])  # FROZEN
        x = sampler.step(x)
""",
    "rounds": """
def anneal(sampler, x, temps):
    for t in temps:
        sampler.temp = t  # FROZEN
        x = sampler.step(x)
""",
    "method": """
class Cooled(Sampler):
    def cool(self, i):
        self.temp = self.temp * np.float32(0.9)  # FROZEN
def anneal(sampler, x, n):
    for i in range(n):
        x = sampler.step(x)
        sampler.cool(i)
Sampler = Cooled
""",
}
RIGHT = {
    "same value": """
def run(sampler, x, rounds):
    sampler.temp = np.float32(0.5)
    for i in range(rounds):
        x = sampler.step(x)
""",
    "in a tensor": """
Sampler.step = lambda self, x: self.net(x) * self.t_in
Sampler.t_in = torch.full((), 2.0, device=device)
def run(sampler, x, rounds):
    for i in range(rounds):
        sampler.temp = np.float32(1 / (i + 1))
        sampler.t_in.fill_(float(sampler.temp))
        x = sampler.step(x)
""",
}
X = "inputs = (torch.ones(3, 4, device=device),)\n"


@pytest.mark.parametrize("form", AROUND)
def test_a_scalar_of_numpys_that_lines_around_a_step_set_is_frozen(form: str, tmp_path: Path) -> None:
    # GIVEN a step that reads a NumPy scalar, which a loop or a method around it sets
    space = load(HEAD + AROUND[form] + X, tmp_path / "program.py")
    # WHEN the step alone is asked
    found = pgk.diagnose(space["Sampler"]().step, *space["inputs"])
    # THEN it is told as a number of Python's is: at the line that reads it, with what sets it
    (one,) = found.failures
    assert one.code == "scalar-frozen"
    assert "self.temp is set between calls" in one.message
    assert "FROZEN" in one.message
    assert ".fill_(" in one.fix


@pytest.mark.parametrize("form", RIGHT)
def test_a_scalar_of_numpys_that_stays_or_is_filled_into_a_tensor_is_none(form: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets the scalar once, ahead of it, or fills a tensor with it
    space = load(HEAD + RIGHT[form] + X, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(space["Sampler"]().step, *space["inputs"])
    # THEN
    assert not found.failures


def test_a_scalar_of_numpys_that_a_step_moves_is_told_with_its_values(tmp_path: Path) -> None:
    # GIVEN a step that counts with one NumPy scalar, asks for it, and lowers another
    step = """
def step(self, x):
    if self.n % 4 == 3:
        x = x * 2
    self.n += 1
    self.temp = np.float32(self.temp * 0.5)
    return self.net(x) * self.temp
Sampler.step = step
"""
    space = load(HEAD + step + X, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(space["Sampler"]().step, *space["inputs"])
    # THEN the words have the numbers, and not the names of their types; the branch is found, too
    told = {f.code: f.message for f in found.failures if f.code != "scalar-frozen"}
    said = "\n".join(f.message for f in found.failures)
    assert "temp went from 0.5 to 0.25" in said
    assert "n went from 2 to 3" in said
    assert "float32" not in said
    assert "branch-frozen" in told


def test_a_scalar_of_numpys_that_each_call_sets_to_the_same_number_is_none(tmp_path: Path) -> None:
    # GIVEN a step that makes the same NumPy scalars anew in each call, alone and in a dictionary
    step = """
def step(self, x):
    self.temp = np.float32(0.5)
    self.seen = {"n": np.int64(3)}
    return self.net(x) * self.temp
Sampler.step = step
Sampler.seen = {"n": np.int64(3)}
"""
    space = load(HEAD + step + X, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(space["Sampler"]().step, *space["inputs"])
    # THEN
    assert not found.failures
