"""Numbers that a launch is given keep the digits that Python's have: float64, complex ones, and counts without end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

# What is written, and what the diff makes of it once.
PROGRAMS = {
    "points of a sequence, in float64": (
        """
def inverse(i):
    f, r = 1.0, 0.0
    while i > 0:
        f, i, r = f / 3, i // 3, r + f / 3 * (i % 3)
    return r
class Points:
    def __init__(self):
        self.i, self.total = 0, torch.zeros((), dtype=torch.float64, device=device)
    def step(self, x):
        self.i += 1
        self.total += ((x + inverse(self.i)) % 1.0).mean()
        return self.total / self.i
points = Points()
f, args = points.step, (torch.linspace(0, 1, 5, dtype=torch.float64, device=device),)
""",
        "given_in = torch.zeros((), dtype=torch.float64, device=device)",
    ),
    "the same of float32": (
        """
class Points:
    def __init__(self):
        self.i = 0
    def step(self, x):
        self.i += 1
        return (x + math.log(self.i)).mean()
points = Points()
f, args = points.step, (torch.linspace(0, 1, 5, device=device),)
""",
        "given_in = torch.zeros((), device=device)",
    ),
    "a rest that a call is given": (
        """
class Turns:
    def __init__(self):
        self.k = 0
    def step(self, x):
        self.k += 1
        return x.clone().mul_(self.k % 3)
turns = Turns()
f, args = turns.step, (torch.arange(4, device=device).float(),)
""",
        "mul_(k_in % 3)",
    ),
    "a power that grows beyond int64": (
        """
class Hash:
    def __init__(self):
        self.power = 1
    def step(self, x):
        y = x * (self.power % 65521)
        self.power *= 131
        return y
kept = Hash()
f, args = kept.step, (torch.arange(4, device=device),)
""",
        "y_in.fill_(self.power % 65521)",
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", PROGRAMS)
def test_a_number_that_a_launch_is_given_has_the_digits_that_it_had(case: str, tmp_path: Path) -> None:
    # GIVEN a step that computes with a number of the host's, which float32 or int64 does not hold
    text, line = PROGRAMS[case]
    # WHEN it is rewritten
    fix = rewritten(text, tmp_path)
    # THEN the tensor for that number holds it, in ten steps as well
    assert fix.complete, fix
    assert any(line in each for each in lines_of(fix)), fix.diff


CHOSEN = """
def f(x, t):
    gamma = 0.1 if t.sum() > 0.3 else WITHOUT
    return x + gamma * t
args = (torch.randn(4, dtype=KIND, device=device), torch.rand(4, dtype=KIND, device=device))
"""


@pytest.mark.parametrize(
    ("kind", "without", "wide"),
    [
        ("torch.float64", "0.7", True),
        pytest.param("torch.float64", "0", True, marks=pytest.mark.sweep),
        pytest.param("torch.float32", "0.7", False, marks=pytest.mark.sweep),
    ],
)
def test_numbers_that_the_device_chooses_between_are_of_float64_where_all_is(
    kind: str, without: str, wide: bool, tmp_path: Path
) -> None:
    # GIVEN a choice between two numbers, in a program of float64 or of float32
    text = CHOSEN.replace("KIND", kind).replace("WITHOUT", without)
    # WHEN it is rewritten
    fix = rewritten(text, tmp_path)
    # THEN the first has the digits that Python's has
    assert fix.complete, fix
    assert ("torch.full((), 0.1, dtype=torch.float64" in fix.diff) is wide, fix.diff


@pytest.mark.sweep
def test_a_phase_is_given_as_a_complex_number(tmp_path: Path) -> None:
    # GIVEN a mixer whose phase the host computes
    text = """
import cmath
class Mixer:
    def __init__(self):
        self.n = 0
    def step(self, x):
        start = cmath.exp(-2j * math.pi * 0.0257 * self.n)
        self.n += 128
        return start * x
step = Mixer().step
"""
    step = run(text, tmp_path)["step"]
    # WHEN it is rewritten
    fix = pgk.diagnose(step, torch.randn(4, device=pgk.device()), fix=True).fix
    # THEN a launch is given it in a tensor of complex numbers
    assert fix is not None
    assert fix.complete, fix
    assert "start_in = torch.zeros((), dtype=torch.complex64, device=device)" in fix.diff


@pytest.mark.sweep
def test_a_number_beyond_int64_keeps_nothing_from_its_trial(tmp_path: Path) -> None:
    # GIVEN a generator of 64 bits that the host computes, of which the step reads the upper half
    text = """
class Walk:
    def __init__(self):
        self.state = 12345
    def step(self, x):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        k = self.state >> 33
        return (x * 7 + k) % 4
f = Walk().step
args = (torch.arange(6, device=device),)
"""
    # WHEN it is rewritten
    fix = rewritten(text, tmp_path)
    # THEN the launch is given that half, whole
    assert fix.complete, fix
    assert "k_in = torch.zeros((), dtype=torch.int64, device=device)" in fix.diff


def test_words_for_a_number_have_its_kind(tmp_path: Path) -> None:
    # GIVEN a step in float64 that computes with what the host does of its own numbers
    text = """
class Drive:
    def __init__(self):
        self.t, self.x = 0.0, torch.zeros(3, dtype=torch.float64, device=device)
    def step(self):
        self.t += 0.1
        self.x.add_(math.cos(1.2 * self.t))
        return self.x
step = Drive().step
"""
    step = run(text, tmp_path)["step"]
    # WHEN it is diagnosed
    told = [f.fix for f in pgk.diagnose(step).failures]
    # THEN the tensor in the words is of float64
    assert any("dtype=torch.float64" in fix for fix in told), told
