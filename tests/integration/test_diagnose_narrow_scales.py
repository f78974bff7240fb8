"""A number that scales a tensor of few bits is a tensor of one element: one without dimensions is rounded first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

TABLE = """
class Table:
    def __init__(self):
        self.E = torch.randn(8, 16, device=device).to(DTYPE)
        self.scales = [0.9, 0.77, 0.61]
        self.i = 0
    def step(self, x):
        s = self.scales[self.i % 3]
        y = LINE + x
        self.i += 1
        return y
table = Table()
args = (torch.randn(8, 16, device=device),)
def f(x):
    return table.step(x)
"""
HERE = {
    "torch.mul(self.E, s)": ("torch.bfloat16", "`(torch.mul(self.E, s_in[None])).to(self.E.dtype)`"),
    "self.E * s": ("torch.float16", "`(self.E * s_in[None]).to(self.E.dtype)`"),
    "(self.E / s)": ("torch.float32", "here `s_in` for `s`"),  # of whole floats it rounds nothing
}


@pytest.mark.parametrize("line", HERE)
def test_a_scale_keeps_its_digits(line: str, tmp_path: Path) -> None:
    # GIVEN a table of few bits, or of float32, that a number of today's scales
    dtype, here = HERE[line]
    names = run(TABLE.replace("LINE", line).replace("DTYPE", dtype), tmp_path)
    # WHEN it is looked at
    found = {each.code: each.fix for each in pgk.diagnose(names["f"], *names["args"]).failures}
    # THEN the words have the number in a form that gives eager's product
    assert here in " ".join(found["scalar-frozen"].split())
