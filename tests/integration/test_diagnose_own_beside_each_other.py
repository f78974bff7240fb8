"""Runners beside each other in one file, and an input for each bucket: what belongs to a graph is its own."""

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
BUCKETS = """
class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.entries = nn.Linear(8, 8, device=device), {}
    def work(self):
        return self.net(self.x)
    @torch.no_grad()
    def step(self, x):
        if x.shape[0] not in self.entries:
            self.x = torch.zeros_like(x)
            self.work()
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = self.work()
            self.entries[x.shape[0]] = dict(graph=graph, x=self.x, out=out)
        entry = self.entries[x.shape[0]]
        FILL
        entry["graph"].replay()
        return entry["out"].clone()
def main():
    runner, outs = Runner(), []
    for n, rows in enumerate((2, 4, 2, 4)):
        outs.append(runner.step(torch.full((rows, 8), float(n), device=device)))
    return torch.cat(outs)
"""
TASKS = """
class Base:
    def __init__(self):
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)
        self.x, self.task, self.graph, self.graphs = torch.zeros(2, 8, device=device), 0, None, {}
    def work(self):
        return self.heads[self.task](self.x)
    @torch.no_grad()
    def step(self, x, task):
        self.task = task
        self.x.copy_(x)
        if self.graph is None:
            self.work()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.work()
        self.graph.replay()
        return self.out.clone()
class Eager(Base):
    def run(self, x):
        outs = []
        for i in range(3):
            self.task = i
            outs.append(self.step(x, i))
        return outs
class EachTask(Base):
    @torch.no_grad()
    def step(self, x, task):
        self.x.copy_(x)
        if task not in self.graphs:
            self.task = task
            self.work()
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = self.work()
            self.graphs[task] = graph, out
        graph, out = self.graphs[task]
        graph.replay()
        return out.clone()
def main():
    runner = RUNNER()
    return torch.stack([runner.step(torch.ones(2, 8, device=device), n % 3) for n in range(6)])
"""


def test_the_input_of_each_bucket_that_is_made_with_its_graph_is_right(tmp_path: Path) -> None:
    # GIVEN a runner whose attribute is the input of the bucket that is captured, or replayed, now
    main = run(BUCKETS.replace("FILL", 'self.x = entry["x"]; self.x.copy_(x)'), tmp_path)["main"]
    # WHEN it is diagnosed THEN nothing is told
    assert not pgk.diagnose(main).failures


def test_an_input_that_no_replay_reads_is_told_where_it_is_given(tmp_path: Path) -> None:
    # GIVEN the same, whose attribute is given each batch
    main = run(BUCKETS.replace("FILL", "self.x = x"), tmp_path)["main"]
    # WHEN it is diagnosed THEN that line is told, and not the one that makes the input of a capture
    assert [(f.code, f.frame.text) for f in pgk.diagnose(main).failures if f.frame] == [("stale-input", "self.x = x")]


def test_what_methods_of_another_class_set_is_none_of_this_object_s(tmp_path: Path) -> None:
    # GIVEN a runner with a graph for each task, beside a class of which a method sets an attribute of that name
    main = run(TASKS.replace("RUNNER", "EachTask"), tmp_path)["main"]
    # WHEN it is diagnosed THEN nothing is told
    assert not pgk.diagnose(main).failures


def test_words_for_a_graph_of_each_value_have_the_table_of_its_own_class(tmp_path: Path) -> None:
    # GIVEN a runner with one graph, beside a class that has a table of graphs
    names = run(TASKS.replace("RUNNER", "Base"), tmp_path)
    # WHEN it is diagnosed, also by its step alone
    step = names["Base"]().step
    found = [
        *pgk.diagnose(names["main"]).failures,
        *pgk.diagnose(step, torch.ones(2, 8, device=names["device"]), 1).failures,
    ]
    # THEN its words have a key of its own, and nothing of the other class's table
    assert {f.code for f in found} == {"scalar-frozen"}
    assert all("`graphs[self.task]`" in f.fix and "self.graphs" not in f.fix for f in found), [f.fix for f in found]
