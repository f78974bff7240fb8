"""Programs that keep a graph for each bucket of rows: what is behind the rows of an input is told where it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
LINE = "self.inputs[size][:n].copy_(candidates)"
PROGRAM = f"""
import torch
from torch import nn
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)).to(device).eval()
class Reranker:
    def __init__(self, buckets):
        self.graphs, self.inputs, self.outputs, self.valid = {{}}, {{}}, {{}}, {{}}
        pool = None
        for size in reversed(buckets):
            x = torch.zeros(size, 12, device=device)
            valid = torch.ones(len(x), dtype=torch.bool, device=x.device)
            with torch.no_grad():
                self.model(x, valid)
                graph = cuda.CUDAGraph()
                with cuda.graph(graph, pool=pool):
                    out = self.model(x, valid)
            pool = pool or graph.pool()
            self.graphs[size], self.inputs[size], self.outputs[size], self.valid[size] = graph, x, out, valid
    def model(self, x, valid):
        scores = body(x).squeeze(-1)
        return SCORED
    def rank(self, candidates):
        n = candidates.shape[0]
        size = next(b for b in sorted(self.graphs) if b >= n)
        {LINE}
        FILLED
        self.graphs[size].replay()
        return self.outputs[size][:n].clone()
reranker = Reranker((4, 8))
def main():
    reranker = Reranker((4, 8))
    return [reranker.rank(torch.randn(n, 12).to(device)).cpu() for n in (6, 8, 5)]
"""
SOFTMAX, EACH = "torch.softmax(scores, 0)", "torch.sigmoid(scores)"
MASKED = "torch.softmax(torch.where(valid, scores, -torch.inf), 0)"
FILLED = "self.valid[size].fill_(False); self.valid[size][:n] = True"


def _program(tmp_path: Path, scored: str, filled: str = "pass") -> dict[str, Any]:
    text = PROGRAM.replace("SCORED", scored).replace("FILLED", filled)
    return load(text, tmp_path / "program.py")


@pytest.mark.parametrize("is_program", [False, True])
def test_rows_behind_those_of_an_input_are_told_where_its_own_depend_on_them(is_program: bool, tmp_path: Path) -> None:
    # GIVEN graphs in a table whose softmax goes over all rows of a bucket, captured ahead of the call or in it
    names = _program(tmp_path, SOFTMAX)
    what = [names["main"]] if is_program else [names["reranker"].rank, torch.randn(6, 12).to(names["device"])]
    # WHEN
    with quiet():
        found = pgk.diagnose(*what, fix=True)
    # THEN the line that fills the first rows is told, with a mask that each replay is given
    (told,) = (f for f in found.failures if f.code == "size-frozen")
    assert told.frame is not None
    assert told.frame.text == LINE
    assert "what is behind self.inputs[size][:n], which a longer input has left there" in told.message
    assert f"after   {LINE}; {FILLED}, with a mask for each bucket" in told.fix
    assert "`torch.where(valid, scores, -torch.inf)` ahead of a softmax" in told.fix
    assert "zeros alone are enough only where a row of zeros adds nothing" in told.fix


@pytest.mark.parametrize(("scored", "filled"), [(EACH, "pass"), (MASKED, FILLED)])
def test_rows_that_do_not_count_are_not_told(scored: str, filled: str, tmp_path: Path) -> None:
    # GIVEN the same with a result for each row by itself, and with the mask of the advice
    names = _program(tmp_path, scored, filled)
    # WHEN
    with quiet():
        launched = pgk.diagnose(names["reranker"].rank, torch.randn(6, 12).to(names["device"]))
        program = pgk.diagnose(names["main"])
    # THEN
    assert [f.code for f in (*launched.failures, *program.failures)] == []


def test_the_mask_of_the_advice_gives_the_numbers_of_the_rows_alone(tmp_path: Path) -> None:
    # GIVEN the mask of the advice
    names = _program(tmp_path, MASKED, FILLED)
    given = [torch.randn(n, 12).to(names["device"]) for n in (6, 8, 5, 2, 4, 1)]
    # WHEN
    got = [names["reranker"].rank(each).cpu() for each in given]
    # THEN
    with torch.no_grad():
        eager = [torch.softmax(names["body"](each).squeeze(-1), 0).cpu() for each in given]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, eager, strict=True))
