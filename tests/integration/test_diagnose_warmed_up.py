"""A warm-up that moves a state for good is noted, and one whose state is put back is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
def main():
    x, average = torch.zeros(4, device=device), torch.zeros(4, device=device)
    def run():
        average.mul_(0.9).add_(x, alpha=0.1)
        return x * 2
    s = cuda.Stream()
    s.wait_stream(cuda.current_stream())
    with cuda.stream(s):
        run()
    cuda.current_stream().wait_stream(s)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = run()
    PUT_BACK
    for i in range(3):
        x.fill_(float(i))
        g.replay()
    return y.cpu(), average.cpu()
"""
MOVED = (
    "the warm-up at line 11 has moved `average`, and nothing puts that back ahead of the first replay: keep copies "
    "ahead of it, and copy_ it back in place ahead of the first replay, if replays are to begin where eager code would"
)


@pytest.mark.parametrize(("back", "noted"), [("pass", [MOVED]), ("average.zero_()", [])])
def test_a_warm_up_that_moves_a_state_is_noted(tmp_path: Path, back: str, noted: list[str]) -> None:
    # GIVEN a program whose warm-up runs what is captured, which moves an average; it may be put back
    names = load(PROGRAM.replace("PUT_BACK", back), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN a note says so, where it stays moved
    assert [note for note in found.notes if "warm-up" in note] == noted
