"""Requests that keep results in lists of their own, stand in others, and are used up by the call that serves them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Job:
    def __init__(self, x, steps):
        self.x, self.left, self.rows = x, list(range(steps)), []
class Pool:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(3, 3, device=device)
        self.x = torch.zeros(2, 3, device=device)
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = torch.tanh(self.x @ self.w)
    def serve(self, jobs):
        waiting, slots, done = list(jobs), {}, []
        while waiting or slots:
            for n in range(2):
                if n not in slots and waiting:
                    slots[n] = [waiting.pop(0), 0]
            for n, (job, _) in slots.items():
                self.x[n].copy_(job.x)
            self.graph.replay()
            for n, (job, count) in list(slots.items()):
                slots[n][1] = count + 1
                row = self.y[n]
                job.rows.append(KEPT)
                job.left.pop()
                if not job.left:
                    done.append(job)
                    del slots[n]
        return torch.stack([row for job in done for row in job.rows])
pool = Pool()
def make():
    return [Job(torch.full((3,), 1.0 + n, device=device), 2 + n % 2) for n in range(4)]
def main():
    return pool.serve(make())
"""


def diagnosed(tmp_path: Path, kept: str) -> list[tuple[str, str, str]]:
    """What is told of a program that makes its requests itself."""
    names = load(PRELUDE + PROGRAM.replace("KEPT", kept), tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["main"]).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


def test_what_requests_keep_is_told_where_they_keep_it(tmp_path: Path) -> None:
    # GIVEN requests that keep a graph's rows, in lists of those that run and that are done
    # WHEN
    found = diagnosed(tmp_path, "row")
    # THEN one line is told: the others only keep requests, and count
    assert found == [("output-alias", "job.rows.append(row)", "job.rows.append(row.clone())")]


def test_requests_that_keep_copies_are_right(tmp_path: Path) -> None:
    # GIVEN the same with copies
    # WHEN
    found = diagnosed(tmp_path, "row.clone()")
    # THEN
    assert not found


def test_arguments_that_the_first_call_has_used_up_are_said_to_be_so(tmp_path: Path) -> None:
    # GIVEN the same, given its requests, which the first call has served
    names = load(PRELUDE + PROGRAM.replace("KEPT", "row.clone()"), tmp_path / "program.py")
    # WHEN
    with quiet():
        (found,) = pgk.diagnose(names["pool"].serve, names["make"]()).failures
    # THEN what the second call does is no problem of the program's, and it is said how it is asked rightly
    assert "the first call has changed its arguments (`left`, `rows`)" in found.message
    assert "pgk.diagnose(lambda: serve(make_args()))" in found.fix
