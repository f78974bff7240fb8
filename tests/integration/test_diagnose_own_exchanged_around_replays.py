"""Tensors that lines exchange between replays of a graph that holds a step alone: the step by itself is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
WALLS = """
class System:
    def __init__(self):
        self.x = torch.rand(8, 3, device=device)
        self.box = torch.full((3,), 4.0, device=device)
        self.tables = {"shift": torch.zeros(3, device=device)}
    def step(self):
        self.x.add_(self.tables["shift"]).remainder_(self.box)
def held(fn):
    fn()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        fn()
    return graph.replay
def widen(s, by):
    s.box.data = s.box * by
def main():
    s = System()
    s.step()
    AHEAD
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        s.step()
    for k in range(10):
        g.replay()
        if k == 4:
            CHANGES
    return s.x
f = System().step
args = ()
"""


def asked(tmp_path: Path, changes: str, ahead: str = "pass") -> list[str]:
    names = run(WALLS.replace("CHANGES", changes).replace("AHEAD", ahead), tmp_path)
    return [f"{p.code} {p.message}" for p in pgk.diagnose(names["f"]).failures]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ("s.box = s.box * 1.1", "stale-input self.box is set between calls"),
        ('s.tables["shift"] = torch.ones(3, device=device)', "stale-input self.tables['shift'] is set between calls"),
        ("widen(s, 1.1)", "parameter-rebound self.box.data is set between calls"),
    ],
)
def test_a_tensor_exchanged_between_replays(tmp_path: Path, changes: str, named: str) -> None:
    """
    GIVEN main captures s.step() and exchanges a tensor that it reads behind some replay
    WHEN the step is asked alone
    THEN that line is told
    """
    found = asked(tmp_path, changes)
    assert [each.startswith(named) for each in found] == [True]


@pytest.mark.parametrize(
    ("changes", "ahead"),
    [
        ("s.box.copy_(s.box * 1.1)", "pass"),
        ("s.x.zero_()", "s.box = s.box * 2"),  # behind the warm-up, ahead of the capture
    ],
)
def test_what_is_written_in_place_or_ahead_of_the_capture_is_none(tmp_path: Path, changes: str, ahead: str) -> None:
    """
    GIVEN the same, where each change is in place, or ahead of the capture
    WHEN the step is asked alone
    THEN nothing is told
    """
    assert asked(tmp_path, changes, ahead) == []


def test_a_helper_that_captures_what_it_is_given(tmp_path: Path) -> None:
    """
    GIVEN a helper of the program's that captures the step, and gives what launches it to the loop
    WHEN the step is asked alone, of a loop that exchanges a tensor and of one that writes it in place
    THEN the first is told, and the second has nothing
    """
    block = "g = cuda.CUDAGraph()\n    with cuda.graph(g):\n        s.step()\n"
    text = WALLS.replace(block, "launch = held(s.step)\n").replace("g.replay()", "launch()").replace("AHEAD", "pass")
    exchanged, in_place = (text.replace("CHANGES", c) for c in ("s.box = s.box * 1.1", "s.box.copy_(s.box * 1.1)"))
    found = pgk.diagnose(run(exchanged, tmp_path)["f"]).failures
    assert [f.frame.text for f in found if f.frame] == ['self.x.add_(self.tables["shift"]).remainder_(self.box)']
    assert not pgk.diagnose(run(in_place, tmp_path)["f"]).failures
