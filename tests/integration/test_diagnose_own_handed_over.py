"""Results handed over by objects of libraries, as futures, and buffers of the host that a pipeline takes turns with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

FUTURES = """
from concurrent.futures import Future
torch.manual_seed(0)
net, x = nn.Linear(4, 4).to(device), torch.zeros(4, device=device)
class Server:
    def __init__(self):
        self.waiting = []
        net(x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = net(x)
    def submit(self, row):
        done = Future()
        self.waiting.append((row, done))
        return done
    def work(self):
        while self.waiting:
            row, done = self.waiting.pop(0)
            x.copy_(row)
            self.graph.replay()
            {hands}
@torch.no_grad()
def main():
    server = Server()
    futures = {kept}
    server.work()
    return [future.result().cpu() for future in futures]
"""
COMPREHENDED = "[server.submit(torch.full((4,), float(n))) for n in range(5)]"
APPENDED = "[]\n    for n in range(5):\n        futures.append(server.submit(torch.full((4,), float(n))))"
HANDED = {
    "in a comprehension": ("done.set_result(self.out)", COMPREHENDED, "done.set_result(self.out.clone())"),
    "a part of it, in a loop": ("done.set_result(self.out[:2])", APPENDED, "done.set_result(self.out[:2].clone())"),
}
PIPELINE = """
torch.manual_seed(0)
net = nn.Linear(4, 4).to(device)
class Pipeline:
    def __init__(self):
        self.x = torch.zeros(4, device=device)
        self.host = [torch.zeros(4).pin_memory() for _ in range(2)]
        self.ready = [cuda.Event() for _ in range(2)]
        net(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = net(self.x)
    def submit(self, n, row):
        self.x.copy_(row)
        self.graph.replay()
        self.host[n % 2].copy_(self.out, non_blocking=True)
        self.ready[n % 2].record()
    def collect(self, n):
        self.ready[n % 2].synchronize()
        return self.host[n % 2]
@torch.no_grad()
def main():
    pipeline, shown = Pipeline(), []
    for n in range(6):
        pipeline.submit(n, torch.full((4,), float(n)))
        shown.append(pipeline.collect(n){copy})
    return shown
"""


@pytest.mark.parametrize(("hands", "kept", "after"), HANDED.values(), ids=HANDED)
def test_results_in_futures_are_told_where_they_get_them(tmp_path: Path, hands: str, kept: str, after: str) -> None:
    # GIVEN futures that are kept, each of which gets the graph's own memory WHEN diagnosed
    program = PRELUDE + FUTURES.format(hands=hands, kept=kept)
    (found,) = pgk.diagnose(load(program, tmp_path / "program.py")["main"]).failures
    # THEN a copy goes in, as a future itself cannot be copied
    assert (found.code, found.frame.text if found.frame else "") == ("output-alias", hands)
    assert found.fix == f"before  {hands}\nafter   {after}"


def test_copies_in_futures_have_no_problem(tmp_path: Path) -> None:
    # GIVEN a server that hands over copies WHEN diagnosed THEN nothing is found
    program = PRELUDE + FUTURES.format(hands="done.set_result(self.out.clone())", kept=COMPREHENDED)
    assert pgk.diagnose(load(program, tmp_path / "program.py")["main"]).failures == ()


@pytest.mark.parametrize(("copy", "lines"), [("", ["shown.append(pipeline.collect(n))"]), (".clone()", [])])
def test_buffers_that_take_turns_are_no_results_that_are_kept(tmp_path: Path, copy: str, lines: list[str]) -> None:
    # GIVEN two buffers of the host that are copied to in turns, with results that are kept, or copied
    program = PRELUDE + PIPELINE.format(copy=copy)
    # WHEN diagnosed
    found = pgk.diagnose(load(program, tmp_path / "program.py")["main"]).failures
    # THEN the line that keeps is told, and not that which makes the buffers
    assert [f.frame.text for f in found if f.frame] == lines
