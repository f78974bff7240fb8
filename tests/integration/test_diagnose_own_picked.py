"""Graphs of programs that read numbers of objects, and of dictionaries, in lists and dictionaries: by key, in loops."""

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
PROGRAM = """
class Layer:
    def __init__(self, scale):
        self.scale, self.count = scale, 0
class Runner:
    def __init__(self):
        self.net, self.name = nn.Linear(6, 3).to(device), "gps"
        self.table = {"gps": {"sigma": 0.5, "n": 0}, "lidar": {"sigma": 1.0, "n": 0}}
        self.layers, self.rows = [Layer(0.5), Layer(1.5)], [{"sigma": 0.5}, {"sigma": 0.7}]
        self.x = torch.zeros(4, 6, device=device)
        self.body()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.body()
    def body(self):
        y = self.net(self.x)
        BODY
        return y
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        AFTER
        return self.out.clone()
def main():
    runner = Runner()
    return [runner.step(torch.full((4, 6), float(k), device=device)) for k in range(4)]
"""
WRONG = {
    "an entry of an entry": ("name = self.name; y = y * self.table[name]['sigma']", "self.table['gps']['sigma'] *= 2"),
    "a name that picks": ("name = self.name; y = y * self.table[name]['sigma']", "self.name = 'lidar'"),
    "of objects": ("for layer in self.layers: y = y * layer.scale", "self.layers[1].scale = 3.0"),
    "of objects by their place": (
        "for i in range(2): y = y * self.layers[i].scale",
        "self.layers[1].scale = 3.0",
    ),
    "of a sum": ("y = y * sum(layer.scale for layer in self.layers)", "self.layers[1].scale = 3.0"),
    "of rows": ("for row in self.rows: y = y * row['sigma']", "self.rows[1]['sigma'] += 3.0"),
    "of items": ("for k, v in self.table.items(): y = y * v['sigma']", "self.table['gps']['sigma'] += 3.0"),
    "of pairs": (
        "for layer, row in zip(self.layers, self.rows): y = y * layer.scale * row['sigma']",
        "self.layers[0].scale += 3.0",
    ),
    "counted": ("for i, layer in enumerate(self.layers): y = y * layer.scale + i", "self.layers[0].scale += 3.0"),
}
RIGHT = {
    "other entries": (
        "name = self.name; y = y * self.table[name]['sigma']",
        "self.table['lidar']['sigma'] *= 2; self.table['gps']['n'] += 1",
    ),
    "what no line reads": ("for layer in self.layers: y = y * layer.scale", "self.layers[1].count += 1"),
    "another loop's": (
        "for layer in self.layers[:1]: y = y * layer.scale",
        "for layer in self.layers: layer.count += 1",
    ),
    "a variable of a comprehension": ("y = y * sum(k for k in (1.0, 2.0))", "self.k = self.__dict__.get('k', 0) + 1"),
}


def told(body: str, after: str, call: str, tmp_path: Path) -> list[str]:
    """The lines that are told of such a program."""
    parts = {"BODY": body, "AFTER": after}
    text = PROGRAM
    for name, lines in parts.items():
        text = text.replace(name, lines.replace("; ", "\n        "))
    names = load(PRELUDE + text, tmp_path / "program.py")
    asked = (names["main"],) if call == "main" else (names["Runner"]().step, torch.ones(4, 6, device=pgk.device()))
    return [f.frame.text if f.frame else "" for f in pgk.diagnose(*asked).failures]


@pytest.mark.parametrize("call", ["main", "step"])
@pytest.mark.parametrize("title", WRONG)
def test_what_a_graph_reads_of_entries_is_told_where_it_moves(title: str, call: str, tmp_path: Path) -> None:
    # GIVEN a graph that reads numbers of entries WHEN its step moves one THEN that line is told
    body, after = WRONG[title]
    assert told(body, after, call, tmp_path) == [after]


@pytest.mark.parametrize("call", ["main", "step"])
@pytest.mark.parametrize("title", RIGHT)
def test_entries_that_no_captured_line_reads_are_nothing(title: str, call: str, tmp_path: Path) -> None:
    # GIVEN the same with what no captured line reads WHEN THEN nothing is told
    assert told(*RIGHT[title], call, tmp_path) == []


POOL = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(6, 3)), 1.0
    def forward(self, x):
        return x @ self.weight * self.scale
class Pool:
    def __init__(self):
        self.net, self.graphs = Layer().to(device), {}
    def capture(self, n):
        CAPTURED
        x = torch.zeros(n, 6, device=device)
        with torch.no_grad():
            self.net(x)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                y = self.net(x)
        self.graphs[n] = graph, x, y
    def step(self, x, scale):
        USED
        if len(x) not in self.graphs:
            self.capture(len(x))
        graph, held, y = self.graphs[len(x)]
        held.copy_(x)
        graph.replay()
        return y.clone()
def main():
    pool = Pool()
    return [pool.step(torch.ones(n, 6, device=device), k) for n, k in JOBS]
"""
SETS = "self.net.scale = scale"


@pytest.mark.parametrize(
    ("captured", "used", "jobs", "lines"),
    [
        ("pass", SETS, "[(4, 1.5), (2, 0.5), (4, 0.5), (6, 1.5), (4, 0.5)]", [SETS]),
        ("pass", SETS, "[(4, 1.5), (2, 0.5), (4, 1.5), (2, 0.5)]", []),
        ("self.net.scale = 1.0 / n", "pass", "[(4, 1.0), (2, 1.0), (4, 1.0), (2, 1.0)]", []),
    ],
)
def test_a_number_that_another_graph_of_the_pool_has_by_chance_is_told(
    captured: str, used: str, jobs: str, lines: list[str], tmp_path: Path
) -> None:
    # GIVEN a pool of graphs by size, and a number that calls set, or a capture for its graph WHEN diagnosed
    text = POOL.replace("CAPTURED", captured).replace("USED", used).replace("JOBS", jobs)
    found = pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"])
    # THEN it is told where a graph gets it that has its own, and not where each has the one it is replayed with
    assert [f.frame.text if f.frame else "" for f in found.failures] == lines, str(found)


LOOP = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.eye(6)), 1.0
    def forward(self, x):
        return x @ self.weight * self.scale
class Runner:
    def __init__(self):
        self.one, self.two = Layer().to(device), Layer().to(device)
        self.x = torch.ones(4, 6, device=device)
        with torch.no_grad():
            self.two(self.one(self.x))
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.two(self.one(self.x))
    def step(self, scales):
        for layer, scale in zip((self.one, self.two), scales):
            layer.scale = scale
        self.graph.replay()
        return self.y.clone()
def main():
    runner = Runner()
    return [runner.step((0.1 * k, 0.2 * k)) for k in range(4)]
"""


def test_a_number_that_a_loop_gives_to_several_objects_is_a_tensor_of_each(tmp_path: Path) -> None:
    # GIVEN a loop that gives each layer its scale WHEN diagnosed THEN each of them gets a tensor
    (found,) = pgk.diagnose(load(PRELUDE + LOOP, tmp_path / "program.py")["main"]).failures
    at = LOOP[: LOOP.index("for layer, scale")].count("\n") + PRELUDE.count("\n") + 1
    assert f"for each `layer` that line {at} goes through: layer.scale = torch.full((), float(layer.scale)" in found.fix
