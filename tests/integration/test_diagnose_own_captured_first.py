"""Objects that capture in their first call: what is set ahead of that, there, is what the graph reads ever after."""

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
class World:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.graph, self.ready = torch.randn(4, 4, device=device), None, False
        self.rows = torch.zeros(9, 4, device=device)
    def body(self):
        new = torch.tanh(self.x @ self.w + self.rows.index_select(0, self.where))
        self.rows.index_copy_(0, self.where, new)
        return new
    def capture(self, x, where):
        GIVEN
        kept = self.rows.clone()
        self.body()
        self.rows.copy_(kept)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.body()
        self.ready = True
    def NAME(self, x, where):
        TEST
            BLOCK
        self.x.copy_(x)
        LATER
        self.graph.replay()
        return self.y.clone()
def main():
    world, out = World(), []
    for n in range(4):
        out.append(world.NAME(torch.randn(3, 4, device=device), torch.randperm(8, device=device)[:3]))
    return torch.cat(out)
"""
GIVEN = "self.x, self.where = x.clone(), where.clone()"
INLINE = """self.x = x.clone()
            self.where = where.clone()
            kept = self.rows.clone()
            self.body()
            self.rows.copy_(kept)
            self.graph, self.ready = cuda.CUDAGraph(), True
            with cuda.graph(self.graph):
                self.y = self.body()"""
CALLED = "self.capture(x, where)"
COPIED = "self.where.copy_(where)"
AGAIN = "self.x = x.clone()"
IS_NONE = "if self.graph is None:"
sweep = pytest.mark.sweep


@pytest.mark.parametrize(
    ("name", "test", "block", "later", "told"),
    [
        ("__call__", IS_NONE, INLINE, COPIED, []),
        ("step", IS_NONE, INLINE, f"{COPIED}; {AGAIN}", [f"{COPIED}; {AGAIN}"]),
        pytest.param("step", "if not self.ready:", INLINE, COPIED, [], marks=sweep),
        pytest.param("step", IS_NONE, CALLED, COPIED, [], marks=sweep),
        pytest.param("__call__", "if not self.ready:", CALLED, COPIED, [], marks=sweep),
        pytest.param("step", "if self.graph is None or x.shape != self.x.shape:", INLINE, COPIED, [], marks=sweep),
    ],
)
def test_what_is_set_ahead_of_the_first_capture_is_no_problem(
    name: str, test: str, block: str, later: str, told: list[str], tmp_path: Path
) -> None:
    # GIVEN an object that makes its inputs, warms up and captures in its first call, and fills them in each, or gives
    # them a new tensor there
    text = PROGRAM.replace("world.NAME", "world" if name == "__call__" else f"world.{name}").replace("NAME", name)
    for part, by in {"GIVEN": GIVEN, "TEST": test, "BLOCK": block, "LATER": later}.items():
        text = text.replace(part, by)
    # WHEN the program is diagnosed
    with quiet():
        found = pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"])
    # THEN only the line that exchanges one later is told
    assert [f.frame.text for f in found.failures if f.frame] == told
