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


MODES = """
import enum
class Act(enum.Enum):
    RELU = 1
    TANH = 2
class Net:
    def __init__(self):
        self.mode, self.x, self.n = FIRST, torch.zeros(3, device=device), 0
        self.table = {}
        for self.mode in (FIRST, SECOND)[::-1]:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                y = self.forward()
            if KEYED or self.mode is FIRST:
                self.table[KEY] = graph, y
    def forward(self):
        FORWARD
    def step(self, x):
        self.n += 1
        if self.n > LEAST:
            self.mode = SECOND
        self.x.copy_(x)
        graph, y = self.table[KEY]
        graph.replay()
        return y.clone()
net, args = Net(), (torch.rand(3, device=device),)
"""
PLAIN = "return self.x.relu() if self.mode == FIRST else self.x.tanh()"
MATCHED = "match self.mode:\n            case Act.RELU: return self.x.relu()\n            case _: return self.x.tanh()"
MOVED = {
    "a word": ("'relu'", "'tanh'", PLAIN, 0, False),
    "a member": ("Act.RELU", "Act.TANH", PLAIN.replace("==", "is"), 0, False),
    "a match": ("Act.RELU", "Act.TANH", MATCHED, 0, False),
    "a function": ("torch.relu", "torch.tanh", "return self.mode(self.x)", 0, False),
    "a word in a later call": ("'relu'", "'tanh'", PLAIN, 9, False),
    "a member in a later call": ("Act.RELU", "Act.TANH", PLAIN.replace("==", "is"), 9, False),
    "a function in a later call": ("torch.relu", "torch.tanh", "return self.mode(self.x)", 9, False),
}
KEYED = {
    "a word": ("'relu'", "'tanh'", PLAIN, 0, True),
    "a member": ("Act.RELU", "Act.TANH", PLAIN.replace("==", "is"), 0, True),
    "the same word": ("'relu'", "'relu'", PLAIN, 0, False),
    "the same function": ("torch.relu", "torch.relu", "return self.mode(self.x)", 9, False),
}


def _moved(case: tuple[str, str, str, int, bool], tmp_path: Path) -> list[tuple[str, str]]:
    first, second, forward, least, keyed = case
    text = MODES.replace("FORWARD", forward).replace("FIRST", first).replace("SECOND", second)
    names = load(
        PRELUDE
        + text.replace("LEAST", str(least)).replace("KEYED", str(keyed)).replace("KEY", "self.mode" if keyed else "0"),
        tmp_path / "program.py",
    )
    found = pgk.diagnose(names["net"].step, *names["args"]).failures
    return [(f.code, f.frame.text) for f in found if f.frame is not None]


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=pytest.mark.sweep if i != 1 else ()) for i, n in enumerate(MOVED)]
)
def test_a_mode_that_the_graph_has_and_a_line_sets_is_told(case: str, tmp_path: Path) -> None:
    # GIVEN a graph that has read a word, a member of an enumeration or a function, and a step that sets another
    # WHEN it is diagnosed alone THEN the line is told
    assert _moved(MOVED[case], tmp_path) == [("branch-frozen", f"self.mode = {MOVED[case][1]}")]


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=pytest.mark.sweep if i != 1 else ()) for i, n in enumerate(KEYED)]
)
def test_a_mode_with_a_graph_of_its_own_is_none(case: str, tmp_path: Path) -> None:
    # GIVEN a graph for each, picked by it, or a line that sets the same
    # WHEN it is diagnosed THEN nothing is told
    assert _moved(KEYED[case], tmp_path) == []
