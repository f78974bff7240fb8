"""What a step computes for its graph by the name that it has there, and copies nowhere: ``mask``, ``self.mask``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Pooler:
    def __init__(self, rows=4, length=6):
        torch.manual_seed(0)
        self.w = torch.randn(3, 3, device=device)
        self.x = torch.zeros(rows, length, 3, device=device)
        self.weights = torch.ones(rows, length, device=device)
        self.body()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.body()
    def body(self):
        return (torch.tanh(self.x @ self.w) * self.weights[..., None]).sum(1)
    def pool(self, x, lengths):
        n = len(x)
        self.x.zero_()
        self.x[:n].copy_(x)
        MAKES
        self.graph.replay()
        return self.y[:n].clone()
pool = Pooler().pool
args = (torch.randn(ROWS, 6, 3, device=device), torch.tensor([6, 2, 4, 1][:ROWS], device=device))
"""
MASK = "(torch.arange(6, device=device)[None] < lengths[:, None]).float()"
RIGHT = (f"self.weights[:n].copy_({MASK})", f"weights = {MASK}; self.weights[:n] = weights")


SLOTS = '    __slots__ = ("graph", "w", "weights", "x", "y")\n'


def told(tmp_path: Path, makes: str, rows: int) -> list[tuple[str, str]]:
    """What is told of such a program, with what is written there."""
    program = PRELUDE + PROGRAM.replace("MAKES", makes).replace("ROWS", str(rows))
    names = load(program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["pool"], *names["args"]).failures
    return [(f.code, f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize(("rows", "part"), [(4, ""), (3, "[:len(weights)]")])
def test_what_is_computed_and_copied_nowhere_is_told(rows: int, part: str, tmp_path: Path) -> None:
    # GIVEN a step that computes today's weights, which no line reads, and a graph that reads its own
    # WHEN it is diagnosed
    found = told(tmp_path, f"weights = {MASK}", rows)
    # THEN the graph has to be given them
    assert found == [("stale-input", f"weights = {MASK}; self.weights{part}.copy_(weights)")]


def test_an_object_with_slots_is_asked_as_any_other(tmp_path: Path) -> None:
    # GIVEN the same of a class that declares slots
    slotted = PROGRAM.replace("class Pooler:\n", f"class Pooler:\n{SLOTS}")
    names = load(PRELUDE + slotted.replace("MAKES", f"weights = {MASK}").replace("ROWS", "4"), tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["pool"], *names["args"])
    # THEN
    assert [f.code for f in found.failures] == ["stale-input"]


@pytest.mark.parametrize("makes", RIGHT)
def test_what_is_copied_is_right(makes: str, tmp_path: Path) -> None:
    # GIVEN the same with weights that are copied to the graph's
    # WHEN
    found = told(tmp_path, makes, 3)
    # THEN
    assert not found


def test_what_is_computed_for_nothing_and_is_called_otherwise_is_none(tmp_path: Path) -> None:
    # GIVEN a graph that weighs with constants, and a step that computes something of the same shape for nobody
    # WHEN
    found = told(tmp_path, f"valid = {MASK}", 4)
    # THEN
    assert not found
