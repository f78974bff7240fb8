"""A state that is a tuple of tensors, exchanged as a whole: its rows are written one by one, once they are there."""

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
PROGRAM = """
class Streamer:
    def __init__(self):
        self.cell = nn.LSTMCell(4, 6).to(device).requires_grad_(False)
        self.chunk = torch.zeros(2, 4, device=device)
        self.reset()
        self.forward()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.new = self.forward()
    def reset(self):
        RESET
    def forward(self):
        return self.cell(self.chunk, self.state)
    def push(self, chunk):
        self.chunk.copy_(chunk)
        self.graph.replay()
        PUSHED
        return self.new[0].clone()
def main():
    streamer, out = Streamer(), []
    for talk in range(2):
        streamer.reset()
        out += [streamer.push(torch.randn(2, 4).to(device)) for _ in range(3)]
    return torch.stack(out).cpu()
"""
ZEROS = "tuple((torch.zeros(2, 6, device=device) for _ in range(2)))"
RESET, PUSHED = f"self.state = {ZEROS}", "self.state = self.new"
FILLED = f"for old, new in zip(self.state, {ZEROS}): old.copy_(new)"
FED = "for held, new in zip(self.state, self.new): held.copy_(new)"
MENDED = f"if hasattr(self, 'state'):\n            {FILLED}\n        else:\n            {RESET}"


def test_rows_are_written_by_their_number_and_where_they_are_there(tmp_path: Path) -> None:
    # GIVEN a state that its reset() and each step exchange, where __init__ calls that first WHEN diagnosed
    text = PRELUDE + PROGRAM.replace("RESET", RESET).replace("PUSHED", PUSHED)
    fixes = [f.fix for f in pgk.diagnose(load(text, tmp_path / "program.py")["main"]).failures]
    # THEN the words can be followed: a tuple has no items(), and at first there is none
    assert fixes == [
        f"before  {RESET}\nafter   where `hasattr(self, 'state')`, `{FILLED}`, and else this line as it is",
        f"before  {PUSHED}\nafter   {FED}",
    ]


@pytest.mark.sweep
def test_such_words_that_are_followed_leave_no_problem(tmp_path: Path) -> None:
    # GIVEN the words followed WHEN diagnosed THEN nothing is told
    text = PRELUDE + PROGRAM.replace("RESET", MENDED).replace("PUSHED", FED)
    assert not pgk.diagnose(load(text, tmp_path / "program.py")["main"]).failures
