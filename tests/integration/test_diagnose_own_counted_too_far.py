"""A warm-up in the first call moves a place on the device, and the replays behind it count beyond a table."""

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
SAMPLER = """
class Sampler:
    def __init__(self):
        self.table = torch.linspace(1, 0, 4, device=device)
        self.x, self.i = torch.zeros(3, device=device), torch.zeros(1, dtype=torch.long, device=device)
        self.graph = None
    def denoise(self):
        self.x.sub_(self.x * self.table[self.i])
        self.i.add_(1)
    def sample(self, noise):
        self.x.copy_(noise)
        self.i.zero_()
        if self.graph is None:
            s = cuda.Stream()
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                self.denoise()
            cuda.current_stream().wait_stream(s)
            BACK
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.denoise()
        for _ in range(4):
            self.graph.replay()
        return self.x.clone()
sampler, noise = Sampler(), torch.rand(3, device=device)
"""


@pytest.mark.parametrize("back", ["pass", "self.x.copy_(noise); self.i.zero_()"])
def test_the_warm_up_is_told_where_a_replay_reads_out_of_range(back: str, tmp_path: Path) -> None:
    # GIVEN such a sampler, and one that puts back what its warm-up has moved
    names = load(PRELUDE + SAMPLER.replace("BACK", back), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["sampler"].sample, names["noise"])
    # THEN the check that fails is told with what has moved, and nothing of the other one
    is_moved = back == "pass"
    assert [f.code for f in found.failures] == ["device-assert"] * is_moved, found
    assert any("has moved `self.x` and `self.i`" in note for note in found.notes) == is_moved
    assert all("what the warm-up has moved" in f.fix for f in found.failures)
