"""Rows that a number of the host's cuts off: a capture computes them all, and who reads its results cuts these."""

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
SERVICE = """
class Service:
    def __init__(self):
        self.net, self.x, self.n = nn.Linear(3, 2).to(device), torch.zeros(8, 3, device=device), 8
    @torch.no_grad()
    def step(self):
        logits = self.net(self.x)
        probs = CUT
        marks = OTHER
        return probs, marks
    def capture(self):
        self.step()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.probs, self.marks = self.step()
    def serve(self, x):
        self.n = x.shape[0]
        self.x[: self.n].copy_(x)
        self.graph.replay()
        return RESULTS
def f():
    torch.manual_seed(0)
    service, kept = Service(), []
    service.capture()
    for n in (3, 8, 1):
        probs, marks = service.serve(torch.randn(n, 3).to(device))
        kept.append((probs.clone(), marks.clone()))
    return kept
"""
CUT, OTHER = "torch.sigmoid(logits)[: self.n]", "(probs > 0.5).float()"
ALL, BEHIND = "torch.sigmoid(logits)", "self.probs[: self.n], self.marks[: self.n]"
BOTH = (
    "captured is `torch.sigmoid(logits)` for `torch.sigmoid(logits)[:self.n]`, which is all rows, each computed alone"
)


def _of(cut: str, other: str, results: str) -> str:
    return SERVICE.replace("CUT", cut).replace("OTHER", other).replace("RESULTS", results)


def test_rows_that_go_alone_to_the_results_are_cut_behind_each_replay(tmp_path: Path) -> None:
    # GIVEN a service whose captured step cuts its rows to as many as a request has
    names = run(_of(CUT, OTHER, "self.probs, self.marks"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"])
    # THEN it is told to compute them all, and to cut what is read behind the replay
    fix = found.failure.fix if found.failure is not None else ""
    assert BOTH in fix, found
    assert "self.graph.replay() `self.probs[:self.n]` for `self.probs`, `self.marks[:self.n]` for `self.marks`" in fix


@pytest.mark.sweep
def test_cut_so_there_are_no_problems_and_as_many_rows_as_were_given(tmp_path: Path) -> None:
    # GIVEN the same with what the words say
    names = run(_of(ALL, OTHER, BEHIND), tmp_path)
    # WHEN THEN
    assert not pgk.diagnose(names["f"]).failures
    assert [len(probs) for probs, _ in names["f"]()] == [3, 8, 1]


@pytest.mark.sweep
def test_rows_that_are_mixed_are_not_cut_behind(tmp_path: Path) -> None:
    # GIVEN a step that compares each of its rows with the largest one of them WHEN
    names = run(_of(CUT, "(probs > probs.max(0).values).float()", "self.probs, self.marks"), tmp_path)
    found = pgk.diagnose(names["f"])
    # THEN rows that were not given are no part of that, and the words are others
    assert found.failure is not None
    assert "each computed alone" not in found.failure.fix, found
