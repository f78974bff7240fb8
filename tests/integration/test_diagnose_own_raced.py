"""Batches that are made on another stream and copied to a graph's input by a line that does not wait for it."""

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
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

@torch.no_grad()
def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4).to(device)
    static = torch.zeros(2, 4, device=device)
    net(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = net(static)
    copies, results = cuda.Stream(), []
    for i in range(4):
        with cuda.stream(copies):
            batch = torch.full((2, 4), float(i), device=device) * 2
        WAIT
        batch.record_stream(cuda.current_stream())
        static.copy_(batch)
        g.replay()
        results.append(out.clone())
    return results
"""


@pytest.mark.parametrize(
    ("wait", "told"),
    [("pass", True), ("cuda.current_stream().wait_stream(copies)", False), ("copies.synchronize()", False)],
)
def test_the_line_that_reads_it_too_early_is_told(wait: str, told: bool, tmp_path: Path) -> None:
    # GIVEN such a program, with and without waiting
    names = load(PROGRAM.replace("WAIT", wait), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the line that copies it to the input is told where nothing waits
    assert ["static.copy_(batch)" in f.frame.text for f in found.failures] == [True] * told, found  # type: ignore[union-attr]


SLOTS = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Doubled:
    def __init__(self, net):
        self.net = net.requires_grad_(False)
        self.upload, self.turn = cuda.Stream(), 0
        self.slots = [torch.zeros(2, 4, device=device) for _ in range(2)]
        self.ready, self.free = [cuda.Event() for _ in range(2)], [cuda.Event() for _ in range(2)]
        self.graphs, self.outs = [], []
        for slot in self.slots:
            self.capture(slot)
    def capture(self, slot):
        self.net(slot)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = self.net(slot)
        self.graphs.append(g)
        self.outs.append(out)
    def step(self, batch):
        k = self.turn % 2
        self.turn += 1
        WAIT
        with cuda.stream(self.upload):
            self.slots[k].copy_(batch, non_blocking=True)
            self.ready[k].record(self.upload)
        cuda.current_stream().wait_event(self.ready[k])
        self.graphs[k].replay()
        self.free[k].record()
        return self.outs[k].clone()

doubled, batch = Doubled(torch.nn.Linear(4, 4).to(device)), torch.rand(2, 4).pin_memory(device)
"""


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        ("pass", True),
        ("self.upload.wait_event(self.free[k])", False),
        ("self.upload.wait_stream(cuda.current_stream())", False),
    ],
)
def test_a_slot_that_is_filled_while_its_graph_may_still_read_it_is_told(wait: str, told: bool, tmp_path: Path) -> None:
    # GIVEN graphs of slots in a list, which no name of today tells, and a step that fills the slots in turn
    names = load(SLOTS.replace("WAIT", wait), tmp_path / "program.py")
    # WHEN the step alone is diagnosed
    found = pgk.diagnose(names["doubled"].step, names["batch"]).failures
    # THEN the upload is told where nothing waits for the replay of before
    assert ["self.slots[k].copy_" in f.frame.text for f in found] == [True] * told, found  # type: ignore[union-attr]


CALLED = """
import torch
import paramgraph_kit as pgk
device = pgk.device()
net = torch.nn.Linear(4, 3).to(device).requires_grad_(False)
class Runner:
    def __init__(self):
        self.x = torch.zeros(8, 4, device=device)
        net(self.x)
        self.graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(self.graph):
            self.out = net(self.x).square()
    def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out
def data():
    for _ in range(4):
        yield torch.randn(8, 4).to(device)
def main():
    r, side, out = Runner(), pgk.cuda.Stream(), []
    for b in data():
        side.wait_stream(pgk.cuda.current_stream())
        with pgk.cuda.stream(side):
            y = r.run(b)
        READ
    return torch.stack(out).cpu()
"""
READ = "out.append(y.clone())"


@pytest.mark.parametrize("read", [READ, pytest.param("out += [y * 2]", marks=pytest.mark.sweep)])
def test_a_result_that_is_read_on_the_stream_that_does_not_wait_is_told_once(read: str, tmp_path: Path) -> None:
    # GIVEN a method that replays on its caller's stream, a result that is read on another, and memory that comes free
    # on that one WHEN diagnosed
    (told,) = pgk.diagnose(load(CALLED.replace("READ", read), tmp_path / "program.py")["main"]).failures
    # THEN the line that reads is told, in the names of its own function and file, and what follows from it is not
    assert told.frame is not None
    assert told.frame.text == read
    assert "reads what the replay of line" in told.message
    assert told.fix.endswith("ahead of this line: pgk.cuda.current_stream().wait_stream(side)")


@pytest.mark.sweep
def test_a_result_whose_stream_is_waited_for_is_not_told(tmp_path: Path) -> None:
    # GIVEN the words followed WHEN diagnosed THEN nothing is told
    followed = f"pgk.cuda.current_stream().wait_stream(side)\n        {READ}"
    assert not pgk.diagnose(load(CALLED.replace("READ", followed), tmp_path / "program.py")["main"]).failures
