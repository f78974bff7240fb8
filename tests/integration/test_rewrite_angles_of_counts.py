"""Angles that a count makes are computed in float64, as in float32 they have fewer digits the longer a run is."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.sweep

FILTER = """
import math
class Filter:
    def __init__(self):
        self.t = 0
        self.x = torch.zeros(3, device=device)
    def moved(self, x):
        return 0.5 * x + {text}
    @torch.no_grad()
    def f(self, y):
        self.t += 1
        self.x = self.moved(self.x) + y
        if self.x.sum() > 1:
            self.x = self.x / 2
        return self.x * 2
f = Filter().f
args = (torch.ones(3, device=device),)
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("8.0 * math.cos(1.2 * self.t)", "8.0 * torch.cos(1.2 * self.t.double()).float()"),
        ("math.sqrt(self.t)", "torch.sqrt(self.t)"),  # of which float32 has as many digits as ever
    ],
)
def test_an_angle_of_a_count_is_computed_as_exactly_as_python_does(text: str, wanted: str, tmp_path: Path) -> None:
    # GIVEN a filter whose helper computes with the number of the step WHEN its branch and its count go to the device
    names = run(FILTER.format(text=text), tmp_path)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN an angle has all of Python's digits there
    assert fix is not None
    assert fix.complete, fix
    assert f"+        return 0.5 * x + {wanted}\n" in fix.diff, fix.diff


FORCED = """
import math
class Forced:
    def __init__(self):
        self.t, self.u = 0.0, torch.zeros(8, device=device)
    def rhs(self, u, t):
        return math.{of}(3.0 * t) - u
    def f(self, y):
        self.u.add_(0.1 * self.rhs(self.u, self.t) * y)
        self.t += 0.1
        return self.u.clone()
f = Forced().f
args = (torch.ones(8, device=device),)
"""


@pytest.mark.parametrize(("of", "kind"), [("cos", ", dtype=torch.float64"), ("exp", "")])
def test_a_fraction_of_which_a_helper_makes_an_angle_is_given_in_float64(of: str, kind: str, tmp_path: Path) -> None:
    # GIVEN a time that goes to a helper, which makes an angle of it or does not WHEN it is given to each launch
    names = run(FORCED.format(of=of), tmp_path)
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN an angle has all of Python's digits there
    assert fix is not None
    assert fix.complete, fix
    assert f"+t_in = torch.zeros((){kind}, device=device)\n" in fix.diff, fix.diff
