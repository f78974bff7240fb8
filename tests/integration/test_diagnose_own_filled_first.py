"""A position that another method sets ahead of a capture: a warm-up that calls what is captured is to find it, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Decoder:
    def __init__(self):
        self.pos, self.cache = 0, torch.zeros(16, 4, device=device)
        self.x = torch.ones(4, device=device)
    def prefill(self, rows):
        PREFILL
    def one(self):
        x = self.x + 1
        self.cache[self.pos] = x
        self.x.copy_(x * 0.5)
        return self.cache.sum(0)
    BESIDE
    def capture(self):
        WARM
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.one()
    def step(self):
        self.graph.replay()
        self.pos += 1
        return self.out.clone()
def main():
    decoder = Decoder()
    decoder.prefill(torch.full((3, 4), 7.0, device=device))
    decoder.capture()
    return torch.stack([decoder.step() for _ in range(4)])
"""
SETS = """self.cache[:3] = rows
        self.pos = 3"""
ONLY = "self.cache[:3] = rows"
BESIDE = {"self.one()": "", "self.warm_up()": "def warm_up(self): self.one()"}
FILLS = "`self.pos_in.fill_(self.pos)`"


def told(tmp_path: Path, prefill: str, warm: str) -> tuple[list[str], str, list[str]]:
    """Which lines of such a program are told, with the end of the first's words, and notes of what is frozen."""
    program = PROGRAM.replace("PREFILL", prefill).replace("WARM", warm).replace("BESIDE", BESIDE[warm])
    names = load(PRELUDE + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["main"])
    lines = [f.frame.text if f.frame else "" for f in found.failures]
    return lines, found.failure.fix.rpartition("ahead of self.graph")[2], [n for n in found.notes if "frozen" in n]


@pytest.mark.parametrize(
    ("prefill", "warm", "words"),
    [
        (SETS, "self.one()", f".replay(), and of line 25, which calls it as it is, {FILLS}"),
        pytest.param(ONLY, "self.one()", f".replay() {FILLS}", marks=pytest.mark.sweep),  # it is what `__init__` gave
        pytest.param(
            SETS,
            "self.warm_up()",
            f".replay() {FILLS}, and behind this line, and line 17, {FILLS}, as `one` also runs without a graph",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_a_position_is_filled_ahead_of_what_calls_it_without_a_graph(
    prefill: str, warm: str, words: str, tmp_path: Path
) -> None:
    # GIVEN a decoder whose position a prompt sets, and each step moves on
    # WHEN it is diagnosed
    lines, end, notes = told(tmp_path, prefill, warm)
    # THEN it is told once, where it moves on, and nothing says that one captures again behind the prompt
    assert lines == ["self.pos += 1"]
    assert notes == []
    # AND the tensor is filled ahead of the warm-up as well, where the prompt has set another position
    assert end == words
