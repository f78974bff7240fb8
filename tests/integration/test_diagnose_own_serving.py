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


CAST = """
net = nn.Linear(4, 4).to(device)
x = torch.zeros(2, 4, device=device)
graph = cuda.CUDAGraph()
with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16CACHE):
    net(x)
    with cuda.graph(graph):
        y = net(x)
def main():
    x.copy_(torch.rand(2, 4, device=device))
    graph.replay()
    return y.float()
"""
RESET = """
class Cache:
    def __init__(self):
        self.x = torch.ones(3, device=device)
        self.reset()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.step()
        self.reset()
    def reset(self):
        self.held = torch.zeros(3, device=device)
    def step(self):
        self.held.add_(self.x)
    def run(self):
        self.reset()
        self.graph.replay()
        return self.held.clone()
cache = Cache()
def main():
    return [cache.run() for _ in range(2)]
"""
PADDED = """
ids = torch.zeros(1, 8, device=device)
graph = cuda.CUDAGraph()
with cuda.graph(graph):
    y = ids.mean(1)
def encode(new):
    n = new.shape[1]
    ids[:, :n].copy_(new)
    graph.replay()
    return y.clone()
def main():
    return [encode(torch.full((1, n), float(n), device=device)) for n in (8, 3, 5)]
"""


@pytest.mark.parametrize(("cache", "told"), [("", 1), (", cache_enabled=False", 0)])
def test_a_cast_that_autocast_has_kept_ahead_of_a_capture(tmp_path: Path, cache: str, told: int) -> None:
    # GIVEN a warm-up and a capture in one autocast block, at the top of a file
    names = load(PRELUDE + CAST.replace("CACHE", cache), tmp_path / "program.py")

    # WHEN what replays it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN the cast is told as what it is, with autocast's own switch, and not as something to keep
    assert [f.code for f in found.failures] == ["autocast-cache"] * told
    assert all("dtype=torch.bfloat16, cache_enabled=False)" in f.fix for f in found.failures)


def test_what_is_gone_with_another_tensor_of_its_path_is_told_once(tmp_path: Path) -> None:
    # GIVEN a state that each request gives other memory, also behind the capture
    names = load(PRELUDE + RESET, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN the line that gives it is told, and not again as freed where a method of it is called
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [
        ("stale-input", "self.held = torch.zeros(3, device=device)")
    ]


def test_a_part_of_each_row_is_no_row(tmp_path: Path) -> None:
    # GIVEN an input of one row that shorter ones fill in part
    names = load(PRELUDE + PADDED, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN what is behind the part is told, and no number of rows
    assert [f.code for f in found.failures] == ["size-frozen"]
    assert "behind ids[:, :n]" in found.failures[0].message
    assert "ids.zero_(); ids[:, :n].copy_(new)" in found.failures[0].fix


GROWN = """
class Runner:
    def __init__(self):
        self.x, self.graphs = torch.zeros(2, 3, device=device), {}
    def run(self, new):
        n = len(new)
        if n > len(self.x):
            self.x = torch.zeros(n, 3, device=device)
        if n not in self.graphs:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                y = self.x[:n] * 2
            self.graphs[n] = (graph, y)
        self.x[:n].copy_(new)
        graph, y = self.graphs[n]
        graph.replay()
        return y.clone()
runner = Runner()
def main():
    return [runner.run(torch.rand(n, 3, device=device)) for n in SIZES]
"""
LISTED = """
class Draft:
    def __init__(self):
        self.x = torch.ones(1, 3, device=device)
    def capture(self, k):
        outs = []
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            y = self.x
            for _ in range(k):
                y = y * 2
                outs.append(y)
            self.out = torch.cat(outs)
    def run(self, x, k=2):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
def main():
    draft = Draft()
    draft.capture(2)
    return [draft.run(torch.rand(1, 3, device=device)CALLED) for i in range(2)]
"""
COUNTED = """
class Flow:
    def __init__(self):
        self.x, self.graph = torch.ones(4, 3, device=device), None
    def capture(self, steps):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            y = self.x
            for _ in range(steps):
                y = y * 2
            self.y = y
    def __call__(self, x, steps):
        if self.graph is None:
            self.capture(steps)
        self.x[:2].copy_(x[:2])
        self.x[2:].copy_(x[2:])
        self.graph.replay()
        return self.y.clone()
flow = Flow()
def main():
    return [flow(torch.rand(4, 3, device=device), n) for n in (2, 3)]
"""
TAIL = """
x = torch.ones(4, 3, device=device)
graph = cuda.CUDAGraph()
with cuda.graph(graph):
    y = x.mean(0)
class Held:
    x = x
held = Held()
def encode(x):
    n = len(x)
    held.x[:n].copy_(x[:n])
    graph.replay()
    return y.clone()
def main():
    return [encode(torch.full((n, 3), float(n), device=device)) for n in (4, 3, 2)]
"""


@pytest.mark.parametrize(("sizes", "told"), [("(2, 4, 2)", 1), ("(2, 1, 2)", 0)])
def test_an_input_that_grows_is_not_seen_by_the_graphs_of_before(tmp_path: Path, sizes: str, told: int) -> None:
    # GIVEN a graph for each size, of one input that a larger batch makes anew
    names = load(PRELUDE + GROWN.replace("SIZES", sizes), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN the line that makes it is told where a smaller graph is replayed again, although the larger one reads it
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [
        ("stale-input", "self.x = torch.zeros(n, 3, device=device)")
    ] * told


@pytest.mark.parametrize(("called", "codes"), [("", []), (", k=i + 2", ["scalar-frozen"])])
def test_a_list_that_a_capture_fills_is_its_own(tmp_path: Path, called: str, codes: list[str]) -> None:
    # GIVEN a method that makes a list, fills it in its capture and joins it there
    names = load(PRELUDE + LISTED.replace("CALLED", called), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"], fix=True)

    # THEN nothing is told of the list, which each capture has anew
    assert [f.code for f in found.failures] == codes


def test_a_count_gets_no_tensor(tmp_path: Path) -> None:
    # GIVEN a number that decides how many rounds a capture has
    names = load(PRELUDE + COUNTED, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN a graph for each is told at the captured line, as `range` takes no tensor
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [("scalar-frozen", "for _ in range(steps):")]
    assert "`if steps not in graphs:`" in found.failures[0].fix
    assert "torch.full" not in found.failures[0].fix


def test_what_is_behind_is_that_of_what_is_written(tmp_path: Path) -> None:
    # GIVEN a line that cuts what it writes to and what it is given
    names = load(PRELUDE + TAIL, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN it is the graph's input whose rest is told, and not the argument's
    assert [f.code for f in found.failures] == ["size-frozen"]
    assert " x[n:].zero_()" not in found.failures[0].fix


AHEAD = """
class Feed:
    def __init__(self):
        self.held, self.graphs = [torch.zeros(3, device=device) for _ in range(2)], []
        for each in self.held:
            self.x = each
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                y = self.x * 2
            self.graphs.append((graph, y))
    def run(self, batches):
        out = []
        self.x = self.held[0]
        self.x.copy_(batches[0])
        for i in range(len(batches)):
            graph, y = self.graphs[i % 2]
            if i + 1 < len(batches):
                self.x = self.held[(i + 1) % 2]
                self.x.copy_(batches[i + 1])
            graph.replay()
            out.append(y.clone())
        return out
feed = Feed()
def main():
    return feed.run([torch.full((3,), float(i), device=device) for i in range(4)])
"""


def test_the_next_input_is_prepared_ahead_of_a_replay(tmp_path: Path) -> None:
    # GIVEN two graphs of one line, each with its own input, which one name has in turn
    names = load(PRELUDE + AHEAD, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN nothing is told of the name
    assert found.failures == ()
