"""A program that captures a method which exchanges two buffers: both are copied before one of them is written."""

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
PLATE = """
class Plate:
    def __init__(self):
        self.a, self.b = torch.zeros(6, 6, device=device), torch.zeros(6, 6, device=device)
        self.sweeps, self.converged, self.graph = 0, False, None
    def sweep(self):
        a, b = self.a, self.b
        b[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
        self.a, self.b = b, a
        self.sweeps += 1
        self.residual = (b - a).abs().max()
        if self.residual < 1e-3:
            self.converged = True
    def advance(self, edge):
        self.a[0].copy_(edge)
        self.b[0].copy_(edge)
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.sweep()
        self.graph.replay()
        return self.a.clone()
plate = Plate()
def f(edge):
    return plate.advance(edge)
"""


def test_two_buffers_that_a_captured_method_exchanges_are_not_copied_one_after_the_other(tmp_path: Path) -> None:
    # GIVEN buffers of zeros, of which a trial cannot tell one from the other
    step = run(PLATE, tmp_path)["f"]
    # WHEN a fix is asked for
    fix = pgk.diagnose(step, torch.linspace(0, 1, 6).to(pgk.device()), fix=True).fix
    # THEN no line writes one of them over the other, behind which both would be the same
    assert fix is not None
    lines = [line[1:].strip() for line in fix.diff.splitlines() if line.startswith("+")]
    copied, written = lines.index("b_now = self.b.clone()"), lines.index("self.a.copy_(a_now.detach())")
    assert lines[copied - 1] == "a_now = self.a.clone()"
    assert copied < written
