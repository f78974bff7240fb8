"""Two graphs with something eager between them, whose result nobody copies to what the second one reads."""

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
SPLIT = """
class Split:
    def __init__(self):
        self.a, self.b = nn.Linear(4, 4).to(device), nn.Linear(4, 2).to(device)
        self.x = torch.zeros(3, 4, device=device)
        self.build()
    def mix(self, h):
        scale = h.norm() + 1e-6
        return h / (scale * 2).clamp(min=1e-3)
    @torch.no_grad()
    def build(self):
        self.b(self.a(self.x))
        self.first, self.second = cuda.CUDAGraph(), cuda.CUDAGraph()
        with cuda.graph(self.first):
            self.h = torch.relu(self.a(self.x))
        mid = self.mix(self.h)
        with cuda.graph(self.second):
            self.y = self.b(mid)
        self.mid = mid
    @torch.no_grad()
    def __call__(self, x):
        self.x.copy_(x)
        self.first.replay()
        mid = self.mix(self.h)
        COPY
        self.second.replay()
        return self.y.clone()
step, x = Split(), torch.rand(3, 4, device=device)
"""


@pytest.mark.parametrize("copy", ["pass", "self.mid.copy_(mid)"])
def test_what_is_computed_between_two_graphs_has_to_be_copied(copy: str, tmp_path: Path) -> None:
    # GIVEN such an object, and one that copies it; temporaries of its lines lie where it lies
    names = load(PRELUDE + SPLIT.replace("COPY", copy), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], names["x"]).failures
    # THEN the line that computes it is told, with the name that the step has for what the graph reads
    fixes = [f.fix.partition("after ")[2].strip() for f in found]
    assert fixes == ["mid = self.mix(self.h); self.mid.copy_(mid)"] * (copy == "pass"), found
