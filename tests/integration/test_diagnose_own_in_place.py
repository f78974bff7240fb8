"""A state that a capture counts on in place, and that a reset ahead of the replays makes anew."""

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
DECODER = """
class Decoder:
    def __init__(self):
        self.graph, self.token, self.net = None, torch.zeros(1, device=device), nn.Linear(1, 1).to(device)
        self.reset()
    def reset(self):
        self.at = torch.zeros(1, device=device)
    def one(self, token):
        out = self.net(token) * self.at
        self.at += 1
        return out
    @torch.no_grad()
    def build(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.one(self.token)
    @torch.no_grad()
    def say(self, token):
        self.reset()
        if self.graph is None:
            self.build()
        self.token.copy_(token)
        said = []
        for _ in range(3):
            self.graph.replay()
            said.append(self.out.clone())
        return said
def eager(decoder, token):
    decoder.reset()
    return [decoder.one(token) for _ in range(3)]
decoder = Decoder()
"""


def test_a_line_that_adds_in_place_is_not_told_as_one_that_gives_other_memory(tmp_path: Path) -> None:
    # GIVEN a position that the captured step moves on in place, and a reset that gives its name another tensor
    names = load(PRELUDE + DECODER, tmp_path / "program.py")

    # WHEN the decoding is diagnosed
    found = pgk.diagnose(names["decoder"].say, torch.ones(1, device=pgk.device()), fix=True)

    # THEN the reset alone is told, and not the line that writes to the tensor which is there
    lines = [f.frame.text for f in found.failures if f.code == "stale-input" and f.frame is not None]
    assert lines == ["self.at = torch.zeros(1, device=device)"], found
