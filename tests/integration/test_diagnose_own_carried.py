"""States that a capture makes of themselves, and gives their place another tensor: attributes, and entries."""

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
FILTER = """
class Filter:
    def __init__(self):
        self.a = torch.eye(3, device=device) * 0.9
        self.mean, self.state = torch.zeros(3, device=device), {"mean": torch.zeros(3, device=device)}
        self.z, self.graph = torch.zeros(3, device=device), None
        EARLY
    def update(self):
        LINES
        return PLACE * 1.0
    def capture(self):
        self.a @ self.z
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.update()
    def advance(self, z):
        if self.graph is None:
            self.capture()
        self.z.copy_(z)
        self.graph.replay()
        return self.out.clone()
advance = Filter().advance
"""
ONE_LINE = "PLACE = self.a @ PLACE + self.z"
BETWEEN = "seen = self.a @ PLACE\n        gain = seen * 0.5\n        PLACE = seen + gain * self.z"
IN_PLACE = "seen = self.a @ PLACE\n        PLACE.copy_(seen + self.z)"
BEGUN_THERE = "PLACE = self.a @ self.z\n        seen = PLACE * 2\n        PLACE = seen + 1"
ABOUT = "size = PLACE.shape\n        PLACE = torch.ones(size, device=device) + self.z"


def told(lines: str, place: str, early: bool, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is told of a filter whose step has these lines, captured by its first call, or where it is made."""
    text = FILTER.replace("LINES", lines).replace("PLACE", place).replace("EARLY", "self.capture()" if early else "")
    names = load(PRELUDE + text, tmp_path / "program.py")
    found = pgk.diagnose(names["advance"], torch.ones(3, device=pgk.device())).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize("place", ["self.mean", 'self.state["mean"]'])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("lines", [ONE_LINE, BETWEEN])
def test_a_state_that_a_capture_exchanges_is_told_once_in_place(
    lines: str, early: bool, place: str, tmp_path: Path
) -> None:
    # GIVEN a captured step that makes its state of the one before, by one line, or through variables
    line = lines.rpartition("\n")[2].strip().replace("PLACE", place)
    value = line.partition(" = ")[2]
    # WHEN diagnosed THEN its line is told once, with a copy into what the graph reads
    found = told(lines, place, early, tmp_path)
    copied = f"{place}.copy_({value})".replace('"', "'")
    assert found == [("stale-input", line, copied)]


@pytest.mark.parametrize("place", ["self.mean", 'self.state["mean"]'])
@pytest.mark.parametrize("lines", [IN_PLACE, BEGUN_THERE, ABOUT])
def test_what_each_replay_makes_anew_is_no_state(lines: str, place: str, tmp_path: Path) -> None:
    # GIVEN a step that writes in place, or gives its place what is made of the inputs alone
    # WHEN diagnosed THEN nothing is told
    assert told(lines, place, False, tmp_path) == []


PAIR = (
    'h, c = self.a @ self.state["mean"], self.a @ self.state["z"]\n        self.state["mean"], self.state["z"] = h, c'
)


def test_entries_that_one_line_exchanges_are_copied_to_by_their_names(tmp_path: Path) -> None:
    # GIVEN a step that gives two entries what it has made of them, by one line
    text = PAIR.replace('self.state["mean"], self.state["z"] =', 'PLACE, self.state["z"] =')
    made = 'self.state["z"] = torch.zeros(3, device=device)'
    text = FILTER.replace("LINES", text).replace("PLACE", 'self.state["mean"]').replace("EARLY", made)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    (failure,) = pgk.diagnose(names["advance"], torch.ones(3, device=pgk.device())).failures
    # THEN each has a name of its own, and is copied
    copied = "self.state['mean'].copy_(new_mean); self.state['z'].copy_(new_z)"
    assert failure.fix.endswith(f"after   new_mean, new_z = (h, c); {copied}")


def test_what_one_method_begins_and_another_goes_on_with_is_no_state(tmp_path: Path) -> None:
    # GIVEN a step whose methods make of the input what others of it go on with, and the same where only a branch does
    text = (
        FILTER.replace("LINES", "self.begin()\n        self.go_on()").replace("PLACE", "self.mean").replace("EARLY", "")
    )
    methods = "    def begin(self):\n        BEGINS\n    def go_on(self):\n        self.mean = self.mean + self.z\n"
    text = text.replace("    def capture(self)", f"{methods}    def capture(self)")
    for n, (line, told_there) in enumerate(
        {"self.mean = self.z * 2": 0, "if self.graph is None: self.mean = self.z": 1}.items()
    ):
        names = load(PRELUDE + text.replace("BEGINS", line), tmp_path / f"program_{n}.py")
        # WHEN diagnosed THEN it is told only where a replay begins with what the last one has left
        assert len(pgk.diagnose(names["advance"], torch.ones(3, device=pgk.device())).failures) == told_there
