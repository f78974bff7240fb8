"""A call that returns a tensor which its graph reads: the next call writes over what somebody may have kept."""

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
PROGRAM = """
class Sampler:
    def __init__(self):
        self.x, self.graph = torch.zeros(2, 4, device=device), None
    def denoise(self, x):
        DRAWN
        return x * 0.5 + noise
    def sample(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.denoise(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.denoise(self.x)
        self.graph.replay()
        self.x.copy_(self.out)
        return RETURNED
sampler = Sampler()
"""
PLAIN, FAILS = "noise = 1.0", "noise = torch.randn(x.shape).to(device)"
SAID = "its result is the tensor that its graph reads, which the next call writes over: who keeps it needs a clone()"


@pytest.mark.parametrize("drawn", [PLAIN, FAILS])
@pytest.mark.parametrize("returned", ["self.x", "self.x.view(-1)", "self.x.clone()"])
def test_a_returned_input_of_a_graph_is_told_to_need_a_copy(drawn: str, returned: str, tmp_path: Path) -> None:
    # GIVEN a sampler whose result is its static input, which each call begins by filling anew
    names = run(PROGRAM.replace("DRAWN", drawn).replace("RETURNED", returned), tmp_path)
    # WHEN it is diagnosed, also where its capture fails, and is looked at with the fix in place
    found = pgk.diagnose(names["sampler"].sample, torch.ones(2, 4, device=pgk.device()), fix=drawn == FAILS)
    # THEN
    assert (SAID in found.notes) is ("clone" not in returned)
