"""Memory that a program frees while another stream may still use it, and that its own stream takes again."""

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
HEAD = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Graphed:
    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Linear(64, 64).to(device)
        self.x = torch.zeros(8, 64, device=device)
        with torch.no_grad():
            self.net(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph), torch.no_grad():
            self.y = self.net(self.x)
"""
AHEAD = (
    HEAD
    + """
class Ahead:
    def __init__(self, batches):
        self.batches, self.stream, self.held = iter(batches), cuda.Stream(), None
        self.fetch()

    def fetch(self):
        batch = next(self.batches, None)
        ORDER
        with cuda.stream(self.stream):
            self.held = None if batch is None else batch.to(device, non_blocking=True)

    def __next__(self):
        cuda.current_stream().wait_stream(self.stream)
        batch = self.held
        if batch is None:
            raise StopIteration
        RECORD
        self.fetch()
        return batch

    def __iter__(self):
        return self

def main():
    runner, results = Graphed(), []
    for batch in Ahead([torch.randn(8, 64).pin_memory() for _ in range(6)]):
        runner.x.copy_(batch)
        runner.graph.replay()
        results.append(runner.y.clone())
    cuda.synchronize()
    return results
"""
)
BACK = (
    HEAD
    + """
class Sent:
    def __init__(self, runner):
        self.runner, self.out, self.hosts = runner, cuda.Stream(), []

    def send(self, x):
        self.runner.x.copy_(x)
        self.runner.graph.replay()
        kept = self.runner.y.clone()
        host = torch.empty(8, 64).pin_memory()
        self.out.wait_stream(cuda.current_stream())
        with cuda.stream(self.out):
            host.copy_(kept, non_blocking=True)
            RECORD
        self.hosts.append(host)
        ORDER

def main():
    sent = Sent(Graphed())
    for i in range(6):
        sent.send(torch.full((8, 64), float(i), device=device))
    cuda.synchronize()
    return [h.sum() for h in sent.hosts]
"""
)
LINE = "self.held = None if batch is None else batch.to(device, non_blocking=True)"


def _told(program: str, record: str, order: str, path: Path) -> list[tuple[str, str]]:
    names = load(program.replace("RECORD", record).replace("ORDER", order), path / "program.py")
    found = pgk.diagnose(names["main"])
    return [(f.frame.text, f.message) for f in found.failures if f.frame is not None]


@pytest.mark.parametrize(
    ("record", "order", "told"),
    [
        ("pass", "pass", True),
        ("batch.record_stream(cuda.current_stream())", "pass", False),
        ("pass", "self.stream.wait_stream(cuda.current_stream())", False),
    ],
)
def test_a_batch_of_a_copy_stream_is_freed_while_the_main_one_may_read_it(
    record: str, order: str, told: bool, tmp_path: Path
) -> None:
    # GIVEN a loader that is one batch ahead on a stream of its own, with and without what keeps the memory
    # WHEN it is diagnosed
    found = _told(AHEAD, record, order, tmp_path)
    # THEN the line that takes the memory again is told where nothing keeps it
    assert [LINE in line and "freed by now" in said for line, said in found] == [True] * told, found


@pytest.mark.parametrize(
    ("record", "order", "told"),
    [
        ("pass", "pass", True),
        ("kept.record_stream(self.out)", "pass", False),
        ("pass", "cuda.current_stream().wait_stream(self.out)", False),
        ("pass", "self.out.synchronize()", False),
    ],
)
def test_a_result_is_freed_while_a_copy_stream_may_read_it(record: str, order: str, told: bool, tmp_path: Path) -> None:
    # GIVEN results that are copied to the host on another stream, with and without what keeps their memory
    # WHEN it is diagnosed
    found = _told(BACK, record, order, tmp_path)
    # THEN
    assert [bool(line) and "freed by now" in said for line, said in found] == [True] * told, found


MADE_THERE = """
def main():
    runner, results = Graphed(), []
    for i in range(4):
        with cuda.stream(cuda.Stream()):
            batch = torch.full((8, 64), float(i), device=device)
        runner.x.copy_(batch)
        runner.graph.replay()
        results.append(runner.y.clone())
    return results
"""


def test_a_stream_that_nobody_can_name_gets_a_name_first(tmp_path: Path) -> None:
    # GIVEN work on a stream that is made where it is entered
    names = load(HEAD + MADE_THERE, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["main"])
    # THEN what is to be waited for is this stream, and no new one
    fixes = [f.fix.partition("after")[2] for f in found.failures]
    assert fixes, found
    assert all("`side = cuda.Stream()` once" in fix and "wait_stream(cuda.Stream())" not in fix for fix in fixes), fixes
