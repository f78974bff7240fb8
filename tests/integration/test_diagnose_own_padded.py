"""Rows behind a shorter input, of which only larger numbers show, or which a variable of its own is a part of."""

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
RUNNER = """
class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.x = torch.randn(6, 6, device=device), torch.zeros(8, 6, device=device)
        self.run()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.run()
    def run(self):
        h = torch.tanh(self.x @ self.w)
        return torch.cat([h, h.REDUCED])
    def execute(self, x):
        n = x.size(0)
        PART
        self.graph.replay()
        return self.out[RESULT].clone()
execute = Runner().execute
args = (torch.randn(5, 6, device=device),)
"""
PARTS = ["rows = self.x.narrow(0, 0, n)\n        rows.copy_(x)", "rows = self.x[:n]\n        rows.copy_(x)"]


@pytest.mark.parametrize("result", ["-1", ":n"])
@pytest.mark.parametrize("reduced", ["amax(0, keepdim=True)", "sum(0, keepdim=True)"])
@pytest.mark.parametrize("part", [*PARTS, "self.x[:n].copy_(x)"])
def test_a_part_that_is_filled_is_told_where_the_result_depends_on_the_others(
    part: str, reduced: str, result: str, tmp_path: Path
) -> None:
    # GIVEN a runner that fills the first rows, by a variable or not, and gives back what goes over all rows, or the
    # first ones
    text = RUNNER.replace("PART", part).replace("REDUCED", reduced).replace("RESULT", result)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN diagnosed
    found = pgk.diagnose(names["execute"], *names["args"]).failures
    # THEN the line that fills is told, also of a maximum, and only where the other rows are in the result
    line = part.rpartition("\n")[2].strip()
    assert [(f.code, f.frame.text if f.frame else "") for f in found] == [("size-frozen", line)] * (result == "-1")
    assert all("self.x[n:].zero_(), as it was made" in f.fix for f in found)
