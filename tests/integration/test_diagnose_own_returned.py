"""Captures of a method that returns what it has made, and what is between the replays of two graphs of before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
RETURNED = """
from dataclasses import dataclass
@dataclass
class Kept:
    gate: torch.Tensor
    calls: int = 0
@dataclass
class Made:
    g: object
    x: torch.Tensor
    y: torch.Tensor
class Filter:
    def __init__(self):
        self.kept = Kept(torch.ones(3, device=device))
        self.made = self.capture()
    def capture(self):
        x, g = torch.ones(3, device=device), cuda.CUDAGraph()
        with cuda.graph(g):
            y = x * self.kept.gate
        return Made(g, x, y)
    def run(self, x):
        LINE
        self.made.x.copy_(x)
        self.made.g.replay()
        return self.made.y.clone()
filter = Filter()
args = (torch.rand(3, device=device),)
"""
ANEW = "self.kept = Kept(x * 2, self.kept.calls + 1)"
MENDED = (
    "new = Kept(x * 2, self.kept.calls + 1); self.kept.gate.copy_(new.gate); new.gate = self.kept.gate; self.kept = new"
)
REDUCED = """
class Trainer:
    def __init__(self):
        self.w = torch.ones(3, device=device, requires_grad=True)
        self.opt, self.x = torch.optim.SGD([self.w], lr=0.1), torch.ones(3, device=device)
        self.first, self.second = self.capture()
    def capture(self):
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            (self.w * self.x).sum().backward()
        cuda.current_stream().wait_stream(side)
        self.w.grad = None
        first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
        with cuda.graph(first):
            (self.w * self.x).sum().backward()
        with cuda.graph(second):
            self.opt.step()
        return first, second
    def reduce(self):
        for p in (self.w,):
            flat = torch.cat([p.grad.reshape(-1)]) / 4
            LINE
    def run(self, x):
        self.x.copy_(x)
        self.first.replay()
        self.reduce()
        self.second.replay()
        return self.w.detach().clone()
trainer = Trainer()
args = (torch.rand(3, device=device),)
"""
SHARED = """
class Graphed:
    def __init__(self, width, pool):
        self.weight = torch.rand(4, width, device=device)
        self.back, self.x = torch.rand(width, 4, device=device), torch.ones(4, 4, device=device)
        torch.tanh(self.x @ self.weight @ self.back)
        self.g = cuda.CUDAGraph()
        with cuda.graph(self.g, pool=pool):
            self.y = torch.tanh(self.x @ self.weight @ self.back)
    def __call__(self, x):
        self.x.copy_(x)
        self.g.replay()
        return self.y
pool = cuda.graph_pool_handle()
large, small = Graphed(16, pool), Graphed(4, pool)
def run(x):
    LINE
    return (a - b).abs()
args = (torch.rand(4, 4, device=device),)
"""


def _told(text: str, line: str, function: str, tmp_path: Path) -> Any:
    names = load(PRELUDE + text.replace("LINE", line), tmp_path / "program.py")
    with quiet():
        return pgk.diagnose(eval(function, names), *names["args"])


def test_an_object_with_a_tensor_that_a_returned_capture_reads_is_another_one(tmp_path: Path) -> None:
    # GIVEN a method without arguments that captures and returns the graph in an object, and a call that makes the
    # object anew which has what the graph reads
    # WHEN it is diagnosed
    found = _told(RETURNED, ANEW, "filter.run", tmp_path)
    # THEN that line is told, with the tensor written over and all else of the object new
    assert [(p.code, p.frame.text) for p in found.failures] == [("stale-input", ANEW)]
    assert found.failures[0].fix.partition("after   ")[2] == MENDED


def test_an_object_whose_tensor_stays_is_as_it_should_be(tmp_path: Path) -> None:
    # GIVEN the same as its fix writes it
    # WHEN it is diagnosed
    found = _told(RETURNED, MENDED, "filter.run", tmp_path)
    # THEN nothing is told
    assert not found.failures


def test_gradients_given_between_a_backward_graph_and_a_step_graph_are_told(tmp_path: Path) -> None:
    # GIVEN a reducer that gives parameters parts of a flat tensor, ahead of the graph that steps
    line = "p.grad = flat.view_as(p)"
    # WHEN it is diagnosed
    found = _told(REDUCED, line, "trainer.run", tmp_path)
    # THEN that line is told
    assert [(p.code, p.frame.text) for p in found.failures] == [("gradients-rebound", line)]
    assert "p.grad.copy_(flat.view_as(p))" in found.failures[0].fix


def test_gradients_written_between_a_backward_graph_and_a_step_graph_are_right(tmp_path: Path) -> None:
    # GIVEN the same into the tensors that are there
    # WHEN it is diagnosed
    found = _told(REDUCED, "p.grad.copy_(flat.view_as(p))", "trainer.run", tmp_path)
    # THEN nothing is told
    assert not found.failures


def test_a_result_that_a_later_graph_of_its_pool_writes_over_is_told(tmp_path: Path) -> None:
    # GIVEN two graphs of one pool captured ahead, replayed in the other order, and the first result read behind both
    # WHEN it is diagnosed
    found = _told(SHARED, "b = small(x); a = large(x)", "run", tmp_path)
    # THEN it is told, with pools of their own
    assert [p.code for p in found.failures] == ["pool-order"]
    assert "with cuda.graph(self.g): a pool of its own" in found.failures[0].fix


@pytest.mark.parametrize("line", ["b = small(x).clone(); a = large(x)", "a = large(x); b = small(x)"])
def test_results_that_are_copied_or_in_the_order_of_captures_are_right(line: str, tmp_path: Path) -> None:
    # GIVEN the same with a copy ahead of the other replay, or in the order of the captures
    # WHEN it is diagnosed
    found = _told(SHARED, line, "run", tmp_path)
    # THEN nothing is told
    assert not found.failures
