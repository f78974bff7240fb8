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


OWN = """
class Noiser:
    def __init__(self):
        self.gen = torch.Generator(device=device).manual_seed(3)
    def __call__(self, x):
        return x + 0.1 * torch.randn(x.shape, device=device, generator=self.gen)
noiser, sums = Noiser(), []
w = torch.ones(4, 4, device=device)
def f(x):
    y = noiser(x) @ w
    LINES
    return y
args = (torch.ones(2, 4, device=device),)
"""


def test_a_generator_of_the_device_that_a_graph_has_to_know_keeps_no_diff_away(tmp_path: Path) -> None:
    # GIVEN a step that draws from a generator of its program's on the device, and counts
    # WHEN it is mended
    fix = rewritten(OWN.replace("LINES", "sums.append(y.sum().item())"), tmp_path)
    # THEN the diff has the count, its trial has told the graph of the generator, and that is said with it
    assert fix.complete
    assert "def after_f(y):  # after each launch" in lines_of(fix)
    assert any("`g.register_generator_state(noiser.gen)` of the graph `g`, once" in each for each in fix.verified)


def test_where_that_generator_is_all_there_is_its_words_stay(tmp_path: Path) -> None:
    # GIVEN the same, that counts nothing WHEN it is mended THEN there is no diff, and what to write is said
    fix = rewritten(OWN.replace("LINES", ""), tmp_path)
    assert not fix.diff
    assert "register_generator_state(noiser.gen)" in "".join(fix.instead)
