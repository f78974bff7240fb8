"""Words for a graph for each value: which inputs each of them reads, and the tables that go by the same key."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")
LAZY = """
class Runner:
    def __init__(self):
        self.mode, self.graph, self.calls = "mean", None, 0
        MADE
    def capture(self, x):
        STATIC
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.x.mean(1) if self.mode == "mean" else self.x.sum(1)
    def step(self, x):
        if self.graph is None:
            self.capture(x)
        self.calls += 1
        self.mode = "sum" if self.calls % 2 else "mean"
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
runner, args = Runner(), (torch.rand(2, 4, device=device),)
"""
TABLES = """
class Runner:
    def __init__(self):
        self.graphs, self.inputs, self.depth = {}, {}, 1
    def capture(self, shape):
        x, g = torch.zeros(shape, device=device), cuda.CUDAGraph()
        with cuda.graph(g):
            y = x
            for _ in range(self.depth):
                y = torch.tanh(y)
        self.graphs[shape], self.inputs[shape] = (g, y), x
    def step(self, x):
        self.depth = self.depth % 3 + 1
        if x.shape not in self.graphs:
            self.capture(x.shape)
        g, y = self.graphs[x.shape]
        self.inputs[x.shape].copy_(x)
        g.replay()
        return y.clone()
runner, args = Runner(), (torch.rand(2, 4, device=device),)
"""
ENTRY = """
class Runner:
    def __init__(self):
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device).requires_grad_(False)
        self.cache, self.depth = {}, 2
    def run(self, x):
        for layer in LAYERS:
            x = layer(x)
        return x
    def step(self, x):
        self.depth = self.depth % 3 + 1
        key = tuple(x.shape)
        entry = self.cache.get(key)
        if entry is None:
            held, g = x.clone(), cuda.CUDAGraph()
            self.run(held)
            with cuda.graph(g):
                y = self.run(held)
            entry = self.cache[key] = (g, held, y)
        g, held, y = entry
        held.copy_(x)
        g.replay()
        return y.clone()
runner, args = Runner(), (torch.rand(2, 4, device=device),)
"""

RING = """
class Ring:
    def __init__(self):
        self.rows, self.i, self.x = torch.zeros(4, 3, device=device), 0, torch.zeros(3, device=device)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.rows[self.i].copy_(self.x)
            self.mean = self.rows.mean(0)
    def push(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.i = (self.i + 1) % 4
        return self.mean.clone()
ring, args = Ring(), (torch.rand(3, device=device),)
"""


def _fix(text: str, tmp_path: Path) -> str:
    names = run(text, tmp_path)
    (failure,) = pgk.diagnose(names["runner"].step, *names["args"]).failures
    return failure.fix.partition("after ")[2].strip()


@pytest.mark.parametrize("made_by", ["the capture", pytest.param("the object", marks=pytest.mark.sweep)])
def test_inputs_that_each_capture_makes_are_to_be_made_once(made_by: str, tmp_path: Path) -> None:
    # GIVEN an object that decides what is captured, and makes the input of its graph with the capture, or with itself
    own, there = (
        ("pass", "self.x = x.clone()")
        if made_by == "the capture"
        else ("self.x = torch.zeros(2, 4, device=device)", "pass")
    )
    # WHEN
    fix = _fix(LAZY.replace("MADE", own).replace("STATIC", there), tmp_path)
    # THEN a graph for each value is told, and of an input that each of these would make anew that there is to be one
    assert "a graph for each value" in fix
    assert ("`self.x`: made by the first of these captures alone" in fix) == (made_by == "the capture")


@pytest.mark.sweep
def test_all_tables_of_one_key_get_the_value(tmp_path: Path) -> None:
    # GIVEN one table of graphs, and one of their inputs, by the same key
    # WHEN
    fix = _fix(TABLES, tmp_path)
    # THEN both have the value in their keys
    assert "`self.graphs[shape, self.depth]` for `self.graphs[shape]`" in fix
    assert "`self.inputs[x.shape, self.depth]` for `self.inputs[x.shape]`" in fix


@pytest.mark.sweep
@pytest.mark.parametrize("layers", ["self.layers[: self.depth]", "list(self.layers)[: self.depth]"])
def test_a_part_of_a_list_of_modules_is_no_part_of_a_tensor(layers: str, tmp_path: Path) -> None:
    # GIVEN a graph of as many layers as a number says, kept in a table that an entry is put into and named at once
    # WHEN
    fix = _fix(ENTRY.replace("LAYERS", layers), tmp_path)
    # THEN the number goes into the key, and no mask is told
    assert "it goes into the key, `self.cache.get((key, self.depth))` for `self.cache.get(key)`" in fix
    assert "arange" not in fix


@pytest.mark.sweep
def test_what_is_written_at_a_counted_place_is_written_there(tmp_path: Path) -> None:
    # GIVEN a ring whose place, a number of Python's, a graph writes to by `copy_`
    names = run(RING, tmp_path)
    # WHEN
    (failure,) = pgk.diagnose(names["ring"].push, *names["args"]).failures
    # THEN the words write to the ring itself, and not to what is picked of it
    assert failure.fix is not None
    assert "`self.rows.index_copy_(0, self.i_in, self.rows.index_select(0, self.i_in).squeeze(0).copy_" in failure.fix
