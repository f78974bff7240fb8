"""Numbers that an iterator gives, of which a few calls show nothing: what they decide later no replay asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.programs.running import load

TEXT = """\
import itertools
import torch
import paramgraph_kit as pgk
device = pgk.device()
def level(n):
    return 0.5 ** (n // 50)
class Runner:
    def __init__(self):
        self.ticks = TICKS
        self.begun = 0
    def step(self, x):
        n = next(self.ticks)
        return x * USE
f = Runner().step
x = torch.ones(3, 4, device=device)
"""
LATE = {
    "a count": ("itertools.count()", "level(n)"),
    "a range": ("iter(range(10_000))", "(0.1 if n < 40 else 1.0)"),
    "pairs": ("zip(itertools.count(), itertools.count(1))", "level(n[1])"),
}


@pytest.mark.parametrize("name", LATE)
def test_what_an_iterator_decides_late_is_told_where_it_is_asked(name: str, tmp_path: Path) -> None:
    # GIVEN a step whose number comes from an iterator, and decides something after fifty calls
    ticks, use = LATE[name]
    names = load(TEXT.replace("TICKS", ticks).replace("USE", use), tmp_path / "program.py")
    # WHEN it is diagnosed THEN it is told where the iterator is asked
    found = pgk.diagnose(names["f"], names["x"])
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("host-counter", "n = next(self.ticks)")], str(found)
    assert "and no replay asks it" in found.failure.message


@pytest.mark.parametrize(
    ("ticks", "asks"),
    [
        ("[itertools.count()]", "n = next(self.ticks[0])"),
        ("itertools.count()", "n = taken(self.ticks)"),
        ("itertools.count()", "n, _ = next(zip(self.ticks, (0,)))"),
    ],
)
def test_it_is_told_wherever_it_is_asked(ticks: str, asks: str, tmp_path: Path) -> None:
    # GIVEN such a number whose iterator is an entry, or is asked by a function or another iterator
    text = TEXT.replace("TICKS", ticks).replace("n = next(self.ticks)", asks).replace("USE", "level(n)")
    text = text.replace("class Runner", "def taken(them):\n    return next(them)\nclass Runner")
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN that line is told
    found = pgk.diagnose(names["f"], names["x"])
    line = "return next(them)" if "taken" in asks else asks
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("host-counter", line)], str(found)


def test_what_shows_where_it_is_used_is_told_there_alone(tmp_path: Path) -> None:
    # GIVEN the same with a number that each call uses
    names = load(TEXT.replace("TICKS", "itertools.count()").replace("USE", "0.9 ** n"), tmp_path / "program.py")
    # WHEN it is diagnosed THEN the line that uses it is told, and the other is not
    found = pgk.diagnose(names["f"], names["x"])
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("scalar-frozen", "return x * 0.9 ** n")], str(found)


def test_an_iterator_that_ends_within_a_call_is_no_problem(tmp_path: Path) -> None:
    # GIVEN a step that makes its iterator in each call
    text = TEXT.replace("self.ticks = TICKS", "pass").replace("next(self.ticks)", "next(itertools.count(3))")
    names = load(text.replace("USE", "level(n)"), tmp_path / "program.py")
    # WHEN it is diagnosed THEN there are no problems
    found = pgk.diagnose(names["f"], names["x"])
    assert not list(found), str(found)
