"""Words that a step is given, and that its graph has from its capture: other keys of a table, and other modes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
ADAPTERS = """
class Adapters:
    def __init__(self):
        self.x, self.slot = torch.zeros(3, device=device), torch.zeros(3, device=device)
        self.table = {"a": torch.ones(3, device=device), "b": torch.zeros(3, device=device)}
        self.active, self.mode, self.logged, self.graph = "a", "fast", "", cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x * READ
    def step(self, x, name):
        BEFORE
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
adapters, args = Adapters(), (torch.rand(3, device=device), GIVEN)
"""
WRONG = {
    "a key": ("self.table[self.active]", "self.active = name", "'a'"),
    "a mode": ("(2 if self.mode == 'fast' else 3)", "self.mode = 'slow' if name == 'slow' else 'fast'", "'fast'"),
}
RIGHT = {
    "a slot": ("self.slot", "self.slot.copy_(self.table[name])", "'a'"),
    "what no graph reads": ("self.table['a']", "self.logged = name", "'a'"),
    "no key": ("self.table[self.active]", "self.logged = name + '.txt'", "'c'"),
}


def _told(case: tuple[str, str, str], tmp_path: Path) -> list[str]:
    read, before, given = case
    text = ADAPTERS.replace("READ", read).replace("BEFORE", before).replace("GIVEN", given)
    names = load(PRELUDE + text, tmp_path / "program.py")
    found = pgk.diagnose(names["adapters"].step, *names["args"]).failures
    return [f.frame.text for f in found if f.frame is not None]


@pytest.mark.parametrize("case", [pytest.param("a key"), pytest.param("a mode", marks=pytest.mark.sweep)])
def test_a_word_that_the_graph_has_is_told_with_another_one(case: str, tmp_path: Path) -> None:
    # GIVEN a step that keeps the word which it is given, and a graph that has read the first one
    # WHEN it is diagnosed with one word alone THEN its line is told
    assert _told(WRONG[case], tmp_path) == [WRONG[case][1]]


@pytest.mark.parametrize("case", ["a slot", *(pytest.param(n, marks=pytest.mark.sweep) for n in [*RIGHT][1:])])
def test_a_word_that_no_graph_reads_is_none(case: str, tmp_path: Path) -> None:
    # GIVEN a step that copies what the word picks, or keeps it for itself
    # WHEN it is diagnosed THEN nothing is told
    assert _told(RIGHT[case], tmp_path) == []
