"""What an object makes when it is asked for is not asked for by who looks at lines; what a part keeps is told."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.held import attribute_of
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")
SIM = """
from functools import cached_property
class Sim:
    def __init__(self):
        self.x, self.k = torch.randn(4, 3, device=device), 0
    @cached_property
    def weights(self): return torch.rand(4, 1, device=device)
    def step(self, noise):
        force = noise - self.x
        self.x.add_(self.weights * force, alpha=0.1)
        self.k += 1
        if self.k == 50:
            self.x = self.x * self.weights
        return self.x.norm()
sim = Sim()
def f(noise): return sim.step(noise)
args = (torch.randn(4, 3, device=device),)
"""
PART = """
def f(video, opts):
    x = video - video.mean()
    if opts["mode"] == "sharpen":
        x = x + opts["amount"] * (x - x.mean(-1, keepdim=True))
    return x * opts.get("gain", 1.0)
args = (torch.randn(2, 6, device=device), {"mode": "sharpen", "amount": 0.5, "gain": 1.2})
"""


@pytest.mark.sweep
def test_a_property_that_keeps_something_is_left_as_it_was(tmp_path: Path) -> None:
    # GIVEN an object that makes something when it is first asked for it WHEN rewritten
    names = run(SIM, tmp_path)
    pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN nobody has: it is made in the user's first call, with the user's random numbers
    assert {*vars(names["sim"])} == {"x", "k"}


def test_an_object_is_not_asked_for_what_it_would_make() -> None:
    # GIVEN properties that keep what they make, count who asks, or do neither WHEN an object is looked at
    class Sim:
        asked = 0

        @cached_property
        def weights(self) -> int:
            return 3

        @property
        def draws(self) -> int:
            self.asked += 1
            return self.asked

        @property
        def size(self) -> int:
            return 5

    sim = Sim()
    # THEN only what changes nothing is asked for, and what is made by now
    assert [attribute_of(sim, name) for name in ("weights", "draws", "size", "none")] == [None, None, 5, None]
    assert sim.weights == 3
    assert attribute_of(sim, "weights") == 3
    assert sim.asked == 0


def test_a_part_that_keeps_numbers_of_a_dictionary_says_so(tmp_path: Path) -> None:
    # GIVEN a function whose options are a dictionary among its arguments WHEN a part of it is cut out
    names = run(PART, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is said that the part's graph keeps them
    assert found is not None
    assert "its graph keeps `opts`: capture it anew where that changes" in str(found), str(found)
