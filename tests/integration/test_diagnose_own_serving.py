"""Servers that capture by themselves: their tables of graphs, the order in one pool, what their methods alone have."""

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
TABLE = """
class Server:
    def __init__(self):
        self.x, self.n, self.graphs = torch.ones(4, 3, device=device), 1, {}
    def capture(self, rows):
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = self.x[:rows]
            for _ in range(self.n):
                y = y * 2
        self.graphs[rows] = (g, y)
    def serve(self, x):
        if self.graphs.get(len(x)) is None:
            self.capture(len(x))
        g, y = self.graphs[len(x)]
        self.x[: len(x)].copy_(x)
        g.replay()
        return y.clone()
server = Server()
def main():
    out = []
    for n in (1, 2):
        server.n = n
        out.append(server.serve(torch.rand(2, 3, device=device)))
    return out
"""
POOL = """
x = torch.ones(3, device=device)
first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
with cuda.graph(first):
    y = x * 2
with cuda.graph(second, pool=POOL):
    z = y + 1
def main():
    out = []
    AHEAD
    for _ in range(3):
        x.copy_(torch.rand(3, device=device))
        ORDER
        out.append(z.clone())
    return out
"""
FREED = """
class Layer:
    def __init__(self):
        self.x = torch.ones(3, device=device)
    def capture(self):
        mask = torch.tril(torch.ones(3, 3, device=device))
        self.g = cuda.CUDAGraph()
        with cuda.graph(self.g):
            self.y = (self.x * mask).sum(0)
    def __call__(self, x):
        self.x.copy_(x)
        self.g.replay()
        return self.y.clone()
def main():
    layer = Layer()
    layer.capture()
    return [layer(torch.rand(3, device=device)) for _ in range(2)]
"""


def test_a_graph_for_each_goes_into_the_own_table(tmp_path: Path) -> None:
    # GIVEN a table of graphs by the number of rows, whose captures read another number, too
    names = load(PRELUDE + TABLE, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN that number goes into each key of the table, as its own lines have it
    assert [f.code for f in found.failures] == ["scalar-frozen"]
    assert "`self.graphs[rows, self.n]` for `self.graphs[rows]`" in found.failures[0].fix
    assert "`self.graphs.get((len(x), self.n))` for `self.graphs.get(len(x))`" in found.failures[0].fix
    assert "`self.graphs[len(x), self.n]` for `self.graphs[len(x)]`" in found.failures[0].fix


@pytest.mark.parametrize(
    ("pool", "ahead", "order", "told"),
    [
        ("first.pool()", "pass", ("second", "first"), 1),
        ("first.pool()", "pass", ("first", "second"), 0),
        ("first.pool()", "first.replay()", ("second", "first"), 0),  # one goes a round ahead, as it is meant to
        ("None", "pass", ("second", "first"), 0),
    ],
)
def test_graphs_of_one_pool_in_another_order(
    tmp_path: Path, pool: str, ahead: str, order: tuple[str, str], told: int
) -> None:
    # GIVEN two graphs at the top of a file, of which one reads what the other makes, and their replays in a loop
    lines = "; ".join(f"{each}.replay()" for each in order)
    text = POOL.replace("POOL", pool).replace("AHEAD", ahead).replace("ORDER", lines.replace("; ", "\n        "))
    names = load(PRELUDE + text, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN the replay that comes too early is told, with the other one ahead of it
    assert [(f.code, f.fix) for f in found.failures] == [
        ("pool-order", "before  second.replay()\nafter   first.replay() ahead of this line")
    ] * told


def test_what_a_method_alone_has_is_kept_by_its_name(tmp_path: Path) -> None:
    # GIVEN a method that captures with a tensor of its own, which is gone behind it
    names = load(PRELUDE + FREED, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN what keeps it has its name
    assert [f.code for f in found.failures] == ["freed-input"]
    assert found.failures[0].fix.endswith("; behind it: self.g.reads = (mask,)")
