"""Entries of a dictionary that a capture reads and gives something else, where its step alone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.usefixtures("recovered")

AVERAGES = """
class Averages:
    def __init__(self, is_graphed=True):
        self.graph, self.is_graphed = None, is_graphed
        self.seen, self.averages = torch.zeros(4, device=device), {n: torch.zeros(4, device=device) for n in "ab"}
    def reset(self):
        for v in self.averages.values():
            v.zero_()
    def work(self):
        WORK
        return sum(v.sum() for v in self.averages.values())
    def step(self, x):
        if self.graph is None and self.is_graphed:
            WARM
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.work()
        self.seen.copy_(x)
        if not self.is_graphed:
            return self.work()
        self.graph.replay()
        return self.out.clone()
"""
LOOP = "for k in self.averages:\n            {}"
WORKS = {
    "at one line": LOOP.format("self.averages[k] = self.averages[k] * 0.9 + self.seen"),
    "in two lines": LOOP.format("new = self.averages[k] * 0.9 + self.seen\n            self.averages[k] = new"),
    "a new dictionary": "self.averages = {k: v * 0.9 + self.seen for k, v in self.averages.items()}",
    "an update": "self.averages.update({k: v * 0.9 + self.seen for k, v in self.averages.items()})",
    "both at once": 'self.averages["a"], self.averages["b"] = self.averages["b"] + self.seen, self.averages["a"]',
}
RIGHT = {
    "in place": LOOP.format("self.averages[k].copy_(self.averages[k] * 0.9 + self.seen)"),
    "all made there": "self.averages = {k: self.seen * 2 for k in self.averages}",
    "begun anew": "self.averages = dict.fromkeys(self.averages, self.seen)\n        "
    + LOOP.format("self.averages[k] = self.averages[k] * 0.9"),
    "made there": 'self.averages["a"] = self.seen * 2; self.averages["a"] = self.averages["a"] + 1',
}


@pytest.mark.parametrize("warm", ["pass", "self.work(); self.reset()"])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_an_entry_is_written_in_place_and_not_kept_as_it_was(work: str, warm: str, tmp_path: Path) -> None:
    # GIVEN averages of which each step makes new ones, in a graph
    program = PRELUDE + AVERAGES.replace("WORK", work).replace("WARM", warm)
    names = load(program, tmp_path / "program.py")
    device = names["device"]
    # WHEN its step alone is asked
    found = pgk.diagnose(names["Averages"]().step, torch.ones(4, device=device)).failures
    # THEN the line that gives them something else is told, and its words, when followed, give eager's numbers
    assert [f.code for f in found] == ["stale-input"], [f.frame for f in found]
    before, after = found[0].fix.removeprefix("before  ").split("\nafter   ")
    lines = program.splitlines()
    at = next(i for i, line in enumerate(lines, 1) if found[0].frame and i == found[0].frame.line)
    indent = lines[at - 1][: len(lines[at - 1]) - len(lines[at - 1].lstrip())]
    lines[at - 1] = indent + after.partition(", and ")[0]
    (tmp_path / "mended").mkdir()
    mended = load("\n".join(lines) + "\n", tmp_path / "mended" / "program.py")["Averages"]
    ours, eager = mended(), names["Averages"](is_graphed=False)
    for n in range(5):
        x = torch.full((4,), float(n), device=device)
        assert torch.allclose(ours.step(x), eager.step(x)), before
    assert not pgk.diagnose(mended().step, torch.ones(4, device=device)).failures


@pytest.mark.parametrize("work", RIGHT.values(), ids=RIGHT)
def test_what_is_written_in_place_or_made_in_the_capture_is_right(work: str, tmp_path: Path) -> None:
    # GIVEN one that is right WHEN it is asked THEN nothing is told
    names = load(PRELUDE + AVERAGES.replace("WORK", work).replace("WARM", "pass"), tmp_path / "program.py")
    assert not pgk.diagnose(names["Averages"]().step, torch.ones(4, device=names["device"])).failures
