"""Programs whose graph reads the first caller's own tensor, which later calls write over: told where that is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
from dataclasses import dataclass
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

@dataclass
class Entry:
    graph: object
    buffer: torch.Tensor
    out: torch.Tensor

class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.entries, self.graph = torch.nn.Linear(4, 4).to(device).requires_grad_(False), {}, None

    def capture(self, batch):
        KEEP
        self.net(batch)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = self.net(buffer)
        return Entry(graph, buffer, out)

    def table(self, batch):
        key = batch.shape
        if key not in self.entries:
            self.entries[key] = self.capture(batch)
        entry = self.entries[key]
        entry.buffer.copy_(batch)
        entry.graph.replay()
        return entry.out.clone()

    def one(self, batch):
        if self.graph is None:
            self.held = LINE
            self.net(batch)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.net(self.held)
        elif batch is not self.held:
            self.held.copy_(batch)
        self.graph.replay()
        return self.out.clone()

    def seen(self):
        return self.held.sum()

def batches():
    torch.manual_seed(1)
    return [torch.randn(2, 4).to(device) for _ in range(3)]

def again():
    runner, results = Runner(), []
    inputs = batches()
    for _ in range(2):
        for each in inputs:
            results.append(runner.METHOD(each))
    return results

def read():
    runner, inputs = Runner(), batches()
    results = [runner.METHOD(each) for each in inputs]
    return [a + b for a, b in zip(results, inputs)]

def once():
    runner, inputs = Runner(), batches()
    return [runner.METHOD(each) for each in inputs]

def made_for_it():
    runner, results, inputs = Runner(), [], batches()
    static = torch.zeros(2, 4, device=device)
    for each in inputs:
        static.copy_(each)
        results.append(runner.METHOD(static) + static)
    return results

def asked():
    runner, results, inputs = Runner(), [], batches()
    for each in inputs:
        results.append(runner.METHOD(each))
        results.append(runner.seen() if runner.graph else results[-1].sum())
    return results
"""


def _program(path: Path, method: str, *, copies: bool, keep: str = "buffer = LINE") -> dict[str, object]:
    text = PROGRAM.replace("KEEP", keep).replace("METHOD", method)
    return load(text.replace("LINE", "batch.clone()" if copies else "batch"), path / "program.py")


@pytest.mark.parametrize("method", ["table", "one"])
@pytest.mark.parametrize("program", ["again", "read"])
def test_the_line_that_keeps_a_batch_which_its_caller_uses_again_is_told(
    program: str, method: str, tmp_path: Path
) -> None:
    # GIVEN a program that goes over its batches again, or adds to results what came in
    names = _program(tmp_path, method, copies=False)
    # WHEN it is diagnosed
    found = pgk.diagnose(names[program])
    # THEN the line that keeps the first batch is its one problem, and a copy is what is said
    assert [f.title for f in found.failures] == ["A graph's input is the caller's own tensor"], found
    assert found.failures[0].fix.endswith(" = batch.clone()")
    assert ".copy_(...)" not in str(found)
    assert found.failures[0].frame.text.endswith(" = batch")  # type: ignore[union-attr]


def test_without_such_a_line_a_copy_ahead_of_the_capture_is_said(tmp_path: Path) -> None:
    # GIVEN the same where an object keeps the argument itself
    text = PROGRAM.replace("KEEP", "pass").replace("METHOD", "table").replace("LINE", "batch")
    text = text.replace("self.net(buffer)", "self.net(batch)").replace(
        "Entry(graph, buffer, out)", "Entry(graph, batch, out)"
    )
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["again"])
    # THEN that is what is said, at the capture
    assert [f.title for f in found.failures] == ["A graph's input is the caller's own tensor"], found
    assert "ahead of the capture, and of what keeps it: batch = batch.clone()" in found.failures[0].fix


@pytest.mark.parametrize("method", ["table", "one"])
@pytest.mark.parametrize("program", ["again", "read", "once", "made_for_it", "asked"])
def test_a_copy_of_the_batch_is_no_problem(program: str, method: str, tmp_path: Path) -> None:
    # GIVEN the same programs with a tensor of the runner's own
    names = _program(tmp_path, method, copies=True)
    # WHEN they are diagnosed
    found = pgk.diagnose(names[program])
    # THEN nothing is told, and nothing is noted of it
    assert not found.failures, found
    assert "caller" not in str(found)


@pytest.mark.parametrize("method", ["table", "one"])
@pytest.mark.parametrize("program", ["once", "made_for_it", "asked"])
def test_a_batch_that_nobody_reads_again_is_no_problem(program: str, method: str, tmp_path: Path) -> None:
    # GIVEN programs that are done with each batch when it was run, or that fill one tensor for the graph
    names = _program(tmp_path, method, copies=False)
    # WHEN they are diagnosed
    found = pgk.diagnose(names[program])
    # THEN nothing is told, and a note says it where later calls write over the first batch
    assert not found.failures, found
    assert ("is the caller's own tensor" in " ".join(str(found).split())) == (program != "made_for_it")


def test_an_object_that_keeps_the_argument_is_told_for_the_function_alone(tmp_path: Path) -> None:
    # GIVEN a method that keeps its argument through another one
    names = _program(tmp_path, "table", copies=False)
    runner, inputs = names["Runner"](), names["batches"]()  # type: ignore[operator]
    # WHEN it is diagnosed by itself
    found = pgk.diagnose(runner.table, inputs[0])
    # THEN the line is told as well
    assert [f.title for f in found.failures] == ["A graph's input is the caller's own tensor"], found
