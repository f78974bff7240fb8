"""Pinned memory that an object keeps, and that lines around its step read while the copy may be under way."""

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
class Reader:
    def __init__(self):
        self.w, self.x = torch.eye(2, device=device), torch.zeros(2, device=device)
        self.host, self.done = torch.empty(2).pin_memory(), cuda.Event()
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x @ self.w
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.host.copy_(self.y, non_blocking=True)
        self.done.record()
    def serve(self, request):
        self.step(request.x)
        request.result = self.host
class Request:
    def __init__(self, x):
        self.x, self.result = x, None
reader, x = Reader(), torch.ones(2, device=device)
def total():
    mine, total = Reader(), 0.0
    for n in range(4):
        mine.step(torch.full((2,), float(n)))
        READ
    return total
def main():
    mine, requests = Reader(), [Request(torch.rand(2, device=device)) for n in range(4)]
    for request in requests:
        mine.serve(request)
    cuda.synchronize()
    return [each.result.tolist() for each in requests]
"""
READ = "total += mine.host.sum().item()"
READS = {
    READ: True,
    f"mine.done.synchronize(); {READ}": False,
    "total += float(mine.host[0])": True,
    "held = [mine.host]": False,
}


@pytest.mark.parametrize("read", [r if r == READ else pytest.param(r, marks=pytest.mark.sweep) for r in READS])
def test_reads_of_what_the_object_keeps_wait(read: str, tmp_path: Path) -> None:
    # GIVEN a loop that reads what the step has left on its object, asked of the step alone
    names = load(PRELUDE + PROGRAM.replace("READ", read), tmp_path / "program.py")
    # WHEN diagnosed
    found = pgk.diagnose(names["reader"].step, names["x"]).failures
    # THEN the line that reads is told, where nothing waits ahead of it
    assert [f.code for f in found] == ["work-elsewhere"] * READS[read]
    assert all(f.frame is not None and f.frame.text == read for f in found)


@pytest.mark.sweep
def test_objects_that_get_such_memory_are_told_where_they_get_it(tmp_path: Path) -> None:
    # GIVEN requests that have an input of their own each, and one result WHEN diagnosed
    names = load(PRELUDE + PROGRAM.replace("READ", "pass"), tmp_path / "program.py")
    (found,) = pgk.diagnose(names["main"]).failures
    # THEN the line that gives it is told, and no copies of the requests
    assert "after   request.result = self.host.clone(); where nothing has waited for that copy" in found.fix
