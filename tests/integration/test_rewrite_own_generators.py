"""What a program draws from a generator of its own, also as an object is called: found, and drawn before a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

CALLED = """
class Augment:
    def __init__(self):
        self.rng = random.Random(0)
    def strength(self):
        return self.rng.uniform(0.5, 1.5)
    def __call__(self, x):
        s = self.strength()
        return x * s
class Model:
    def __init__(self):
        self.augment = Augment()
        self.w = torch.randn(8, 8, device=device)
    def f(self, x):
        return self.augment(x) @ self.w
model = Model()
f = model.f
args = (torch.randn(6, 8, device=device),)
"""
FLIPS = CALLED.replace(
    "        s = self.strength()\n        return x * s",
    "        if self.rng.random() < 0.5:\n            x = x.flip(1)\n        return x{}",
)


def test_what_an_object_draws_as_it_is_called_is_drawn_before_the_launch(tmp_path: Path) -> None:
    # GIVEN an object whose `__call__` asks a method of its own, which draws
    # WHEN it is mended
    fix = rewritten(CALLED, tmp_path)
    # THEN the draw goes before the launch, of the object as the step names it
    assert fix.complete
    assert {"s = self.augment.strength()", "s_in.fill_(s)", "return x * s_in"} <= {*lines_of(fix)}


def test_an_object_that_is_called_elsewhere_too_keeps_its_draw(tmp_path: Path) -> None:
    # GIVEN the same, beside a validation that calls it
    text = CALLED.replace("args =", "def validate(x):\n    return model.augment(x).mean()\nargs =")
    # WHEN / THEN that would read what was drawn for a step: the lines stay
    assert not rewritten(text, tmp_path).diff


@pytest.mark.parametrize("kind", ["random.Random(0)", "np.random.RandomState(0)", "np.random.default_rng(5)"])
def test_a_branch_on_what_an_own_generator_draws_is_found_where_calls_took_one_way(kind: str, tmp_path: Path) -> None:
    # GIVEN a flip that a generator decides which the program has itself: its first draws go one way
    text = FLIPS.format("").replace("random.Random(0)", kind).replace("rng.random()", "rng.uniform(0, 1)")
    names = run(text, tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN more calls are made, which have drawn others
    assert [f.code for f in found.failures] == ["branch-frozen"]
    assert "rng.uniform(0, 1) < 0.5" in found.failures[0].frame.text


def test_several_draws_of_an_own_generator_go_before_the_launch_in_their_order(tmp_path: Path) -> None:
    # GIVEN a flip, and two numbers of one line that are written alike
    text = FLIPS.format(" * self.rng.uniform(0.8, 1.2) + self.rng.uniform(0.8, 1.2)")
    # WHEN it is mended
    fix = rewritten(text, tmp_path)
    # THEN each has a tensor of its own, filled in the order in which the step has drawn
    assert fix.complete
    drawn = [line[1:].strip() for line in fix.diff.splitlines() if line.startswith("+") and ".fill_(" in line]
    assert drawn == [
        "given_in.fill_(self.augment.rng.random() < 0.5)",
        "given_in_2.fill_(self.augment.rng.uniform(0.8, 1.2))",
        "given_in_3.fill_(self.augment.rng.uniform(0.8, 1.2))",
    ]


def test_no_note_says_that_drawn_numbers_change_nothing_beside_what_they_freeze(tmp_path: Path) -> None:
    # GIVEN a number of an own generator that is frozen
    names = run(CALLED, tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN that is told, and nothing against it
    assert [f.code for f in found.failures] == ["host-random"]
    assert not any("its operations were the same" in note for note in found.notes)
