"""A number that a captured line adds a tensor to: a capture in the first call would begin with the number each time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.begun_numbers import in_words
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
CLOCK = """
class Clock:
    def __init__(self):
        self.x = torch.zeros(4, device=device)
        self.v = torch.ones(4, device=device)
        self.time = 0.0
        self.graph = None
    def body(self):
        speed = self.v.norm().item()
        dt = min(0.02, 0.05 / (speed + 1e-6))
        self.v.mul_(0.9).add_(dt * self.x.cos())
        self.x.add_(dt * self.v)
        self.time += dt
    def __call__(self, push):
        self.x.add_(push)
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.body()
        self.graph.replay()
        return self.x.clone()
clock = Clock()
"""
AGAIN = CLOCK.replace("    def body", "    def again(self):\n        self.time = 0.5 - 0.5\n    def body").replace(
    "self.time = 0.0", "self.again(); self.time = 0.0; self.time = 0.0"
)
WITHIN = AGAIN.replace("speed = self.v", "self.v.mul_(0.99).add_(self.x.sin(), alpha=0.01)\n        speed = self.v")
MENDED = CLOCK.replace(".norm().item()", ".norm()").replace(
    "min(0.02, 0.05 / (speed + 1e-6))", "(0.05 / (speed + 1e-6)).clamp(max=0.02)"
)
BEFORE = MENDED.replace("self.time = 0.0", "self.time = torch.zeros((), device=device)")
WARM = MENDED.replace("            self.graph = cuda", "            self.body()\n            self.graph = cuda")


def diagnosed(text: str, path: Path, fix: bool = True) -> Any:
    """What is found of a call of the clock."""
    return pgk.diagnose(load(PRELUDE + text, path)["clock"], torch.ones(4, device=pgk.device()), fix=fix)


def told(found: Any) -> list[str]:
    """The lines that are told as reading what another call has left."""
    return [f.frame.text for f in found.failures if f.code == "stale-input" and f.frame is not None]


def test_a_number_is_a_tensor_where_it_is_made_and_moves_in_a_capture_of_the_first_call(tmp_path: Path) -> None:
    # GIVEN a time that begins as 0.0 and gets what comes from the device, captured in the first call
    found = diagnosed(CLOCK, tmp_path / "clock.py")
    assert found.fix is not None
    assert found.fix.complete, found

    # WHEN its diff is applied, and called as the program calls it, ten times
    lines = next(iter(found.fix.texts.values()))
    clock = load("".join(line.rstrip("\n") + "\n" for line in lines), tmp_path / "mended.py")["clock"]
    for _ in range(10):
        clock(torch.ones(4, device=pgk.device()))

    # THEN it has gone on in each call
    assert "self.time = torch.tensor(0.0, dtype=torch.float64, device=device)" in found.fix.diff
    assert float(clock.time) == pytest.approx(0.2, rel=1e-3)
    assert not any("which a warm-up makes" in line for line in found.fix.verified)


def test_a_number_that_several_lines_make_moves_behind_each_launch(tmp_path: Path) -> None:
    # GIVEN the same, where several lines make the number
    # WHEN it is diagnosed
    found = diagnosed(AGAIN, tmp_path / "again.py")

    # THEN it stays a number, and what moves it goes behind each launch
    assert found.fix is not None
    assert found.fix.complete, found
    behind = found.fix.diff.partition("def after_body(self):")[2]
    assert "self.time += dt" in behind
    assert not any("is a tensor from now on" in line for line in found.fix.verified), found.fix


def test_a_part_leaves_the_number_out_where_no_diff_is_whole(tmp_path: Path) -> None:
    # GIVEN the same, where what the number gets is known in the middle of the graph alone
    # WHEN it is diagnosed
    found = diagnosed(WITHIN, tmp_path / "within.py")

    # THEN no whole diff keeps the line that adds to the number in a graph, and the part that is proved ends before it
    assert found.fix is not None
    assert found.fix.alone == "body_part", found
    part = found.fix.diff.partition("def body_part(self):")[2].partition("class Clock")[0]
    assert "dt = " in part
    assert "self.time" not in part


def test_what_to_do_is_told_where_nobody_knows_where_a_number_is_made() -> None:
    # GIVEN a number of which no line is known
    attempt: Any = SimpleNamespace(sources={}, device="cuda")
    number: Any = SimpleNamespace(name="time", value=0.0)

    # WHEN it is told
    (text,) = in_words(attempt, [number])

    # THEN the words say what makes it a tensor, and why
    assert text.startswith("make `time` a tensor where it is made, `time = torch.tensor(0.0, device=cuda)`")
    assert text.endswith("the capture is the first call, and would keep the number that is there then")


@pytest.mark.parametrize("line", ["self.time += dt", "self.time = self.time + dt"])
def test_a_number_that_a_capture_has_made_a_tensor_of_is_told(line: str, tmp_path: Path) -> None:
    # GIVEN a capture that adds a tensor to a number of Python's
    text = MENDED.replace("self.time += dt", line)

    # WHEN a call is diagnosed that captures, and one behind that
    names = load(PRELUDE + text, tmp_path / "mended.py")
    first = pgk.diagnose(names["clock"], torch.ones(4, device=pgk.device()))
    names["clock"](torch.ones(4, device=pgk.device()))
    later = pgk.diagnose(names["clock"], torch.ones(4, device=pgk.device()))

    # THEN both tell the line, and where the tensor has to be made
    assert told(first) == told(later) == [line], (first, later)
    assert "self.time = torch.tensor(0.0, device=" in str(first)


@pytest.mark.parametrize("text", [BEFORE, WARM])
def test_a_tensor_that_is_there_before_the_capture_is_added_to_in_place(text: str, tmp_path: Path) -> None:
    # GIVEN the same, where a tensor is there when the capture begins
    # WHEN it is diagnosed
    found = diagnosed(text, tmp_path / "sound.py", fix=False)

    # THEN nothing is told of that line
    assert "self.time += dt" not in told(found), found
