"""Graphs as public runners make them: a cache that is begun elsewhere, inputs made in a capture, an error behind it."""

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
DECODER = """
class Cache:
    def __init__(self):
        self.offset, self.state = 0, torch.zeros(2, 8, device=device)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x, cache):
        if TEST:
            cache.state.mul_(0.5).add_(self.mix(x))
        else:
            cache.state.copy_(self.mix(x))
        return self.head(cache.state)
model = Model().to(device).requires_grad_(False)
def capture(cache, most):
    at = torch.zeros(2, 8, device=device)
    cache.offset = most - 1
    model(at, cache)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = model(at, cache)
    cache.offset = 0
    def run(x):
        at.copy_(x)
        graph.replay()
        return out.clone()
    return run
cache = Cache()
runs = {}
def decode(x):
    if not runs:
        runs[1] = capture(cache, 12)
    cache.offset = 0
    x = model(x, cache)
    for i in range(5):
        cache.offset += 1
        x = runs[1](x)
    return x
x = torch.randn(2, 8).to(device)
"""
RUNNER = """
class Runner:
    def __init__(self, net):
        self.net, self.graph = net, None
        self.pool = cuda.graph_pool_handle()
    def __call__(self, x):
        if self.graph is None:
            self.net(x)
            made = cuda.CUDAGraph()
            with cuda.graph(made, pool=self.pool):
                self.x = x * 1
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph, pool=self.pool):
                self.y = self.net(self.x)
        WRITE
        self.graph.replay()
        return self.y.clone()
run = Runner(nn.Linear(8, 8).to(device).requires_grad_(False))
x = torch.randn(2, 8).to(device)
def step(x):
    return run(x).relu()
def fails(x):
    y = run(x)
    cuda.synchronize()
    return y.cpu().numpy().absent
"""


def _told(tmp_path: Path, text: str, name: str) -> list[tuple[str, str]]:
    names = load(f"{PRELUDE}{text}", tmp_path / "program.py")
    return [(each.code, each.message) for each in pgk.diagnose(names[name], names["x"]).failures]


@pytest.mark.parametrize("test", ["cache.offset > 0", "cache.offset >= 1", "cache.offset != 0", "cache.offset"])
def test_a_test_that_only_asks_for_any_goes_the_same_way(tmp_path: Path, test: str) -> None:
    # GIVEN a captured line that asks whether a cache has anything, which it has at each replay WHEN diagnosed
    # THEN that it has more by now is no other way
    assert not _told(tmp_path, DECODER.replace("TEST", test), "decode")


@pytest.mark.parametrize("test", ["cache.offset > 8", "cache.offset >= 10", "cache.offset != 11", "-cache.offset < -9"])
def test_a_test_of_how_many_there_are_is_told(tmp_path: Path, test: str) -> None:
    # GIVEN a captured line that goes another way where a counter is lower WHEN diagnosed
    told = _told(tmp_path, DECODER.replace("TEST", test), "decode")
    # THEN it is told, with both values
    assert {code for code, _ in told} == {"branch-frozen"}, told


def test_inputs_that_a_capture_has_made_and_each_call_writes_are_in_order(tmp_path: Path) -> None:
    # GIVEN a graph whose input another capture has made in their pool, and that each call writes WHEN diagnosed
    # THEN it needs no replay of the other one
    assert not _told(tmp_path, RUNNER.replace("WRITE", "self.x.copy_(x)"), "step")


def test_inputs_that_only_a_capture_could_have_made_are_told(tmp_path: Path) -> None:
    # GIVEN the same, and nobody writes it WHEN diagnosed
    told = _told(tmp_path, RUNNER.replace("WRITE", "pass"), "step")
    # THEN the other graph has to be replayed first
    assert "pool-order" in [code for code, _ in told], told


def test_an_error_behind_a_launch_is_told_alone(tmp_path: Path) -> None:
    # GIVEN a function that captures, launches, waits, and fails behind that WHEN diagnosed
    told = _told(tmp_path, RUNNER.replace("WRITE", "self.x.copy_(x)"), "fails")
    # THEN what it does around its launch is no capture's
    assert [code for code, _ in told] == ["raises"], told


FLAGGED = """
class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.graph = net, None
    def forward(self, *args, **kwargs):
        if self.graph is None:
            self.args = tuple(each.clone() for each in args)
            self.net(*self.args, **kwargs)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.net(*self.args, **kwargs)
        return self.replay(*args, **kwargs)
    def replay(self, *args, **kwargs):
        for held, each in zip(self.args, args):
            held.copy_(each)
        self.graph.replay()
        return tuple(each.clone() for each in self.out)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x, both=True):
        y = self.lin(x)
        return (y, y.sigmoid()) if both else (y,)
run = Wrapped(Net().to(device).requires_grad_(False))
x = torch.randn(2, 8).to(device)
"""


def test_a_flag_among_keywords_is_told_with_a_graph_for_each_where_the_runner_is_asked(tmp_path: Path) -> None:
    # GIVEN a runner that hands a flag on to what it captures, and that no caller of the file's asks WHEN diagnosed
    names = load(f"{PRELUDE}{FLAGGED}", tmp_path / "program.py")
    told = pgk.diagnose(names["run"], names["x"], both=False)
    # THEN it decides what the graph holds, which no tensor does
    assert [each.code for each in told.failures] == ["branch-frozen"], told
    assert "`if kwargs.get('both') not in graphs:`" in told.failures[0].fix, told
