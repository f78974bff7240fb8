"""Batches that a loop, or a call, has in variables, of which one is copied and another is the capture's for ever."""

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
BATCH = """
w = torch.ones(4, 4, device=device)
def score(x, keep):
    return ((x @ w) * keep).sum(0)
def batch(i):
    return torch.full((3, 4), 1.0 + i, device=device), (torch.arange(3, device=device) <= KEPT).float().unsqueeze(1)
"""
LOOP = """
def main():
    x, keep = batch(0)
    sx, sk = x.clone(), keep.detach().clone()
    score(sx, sk)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = score(sx, sk)
    rows = []
    for i in range(6):
        x, keep = batch(i)
        FILL
        g.replay()
        rows.append(out.clone())
    return torch.stack(rows)
"""
ENTRY = """
class Entry:
    def __init__(self, graph, x, keep, out):
        self.graph, self.x, self.keep, self.out = graph, x, keep, out
class Server:
    def __init__(self):
        self.entries = {}
    def capture(self, x, keep):
        x, keep = x.clone(), keep.clone()
        score(x, keep)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = score(x, keep)
        return Entry(g, x, keep, out)
    def serve(self, i):
        x, keep = batch(i)
        entry = self.entries.get(len(x))
        if entry is None:
            entry = self.entries[len(x)] = self.capture(x, keep)
        FILL
        entry.graph.replay()
        return entry.out.clone(), keep
def main():
    server, off = Server(), []
    for i in range(6):
        y, keep = server.serve(i)
        off.append((y - score(torch.full((3, 4), 1.0 + i, device=device), keep)).abs().max().item())
    return off
"""
PROGRAMS = {
    LOOP: ("sx.copy_(x)", "sk.copy_(keep); g.replay()"),
    ENTRY: ("entry.x.copy_(x)", "entry.keep.copy_(keep); entry.graph.replay()"),
}


def told(text: str, file: Path) -> list[tuple[str, str]]:
    """What is told of a program: the class, and what to write there."""
    with quiet():
        found = pgk.diagnose(load(PRELUDE + text, file)["main"]).failures
    return [(f.code, f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize("program", PROGRAMS, ids=["a loop", "an entry of a cache, and a check against eager"])
def test_a_mask_that_nobody_copies_is_told(program: str, tmp_path: Path) -> None:
    # GIVEN batches with masks that move, of which lines copy the numbers alone
    copied, words = PROGRAMS[program]
    text = BATCH.replace("KEPT", "i % 3") + program
    # WHEN it is diagnosed THEN the mask is told, with its copy
    assert told(text.replace("FILL", copied), tmp_path / "broken.py") == [("stale-input", words)]
    # AND nothing is told where that is there, or where all batches have the same mask
    filled = f"{copied}; {words.partition(';')[0]}"
    assert told(text.replace("FILL", filled), tmp_path / "mended.py") == []
    same = BATCH.replace("KEPT", "1") + program
    assert told(same.replace("FILL", copied), tmp_path / "same.py") == []


def test_a_buffer_of_a_plain_name_is_known_by_what_it_is_a_copy_of(tmp_path: Path) -> None:
    # GIVEN the same with the capture's clone in a variable that is called by what it is
    text = (BATCH.replace("KEPT", "i % 3") + LOOP).replace("sk", "static").replace("FILL", "sx.copy_(x)")
    # WHEN it is diagnosed THEN the mask is told
    assert told(text, tmp_path / "program.py") == [("stale-input", "static.copy_(keep); g.replay()")]


def test_a_variable_of_another_name_is_not_taken_for_it(tmp_path: Path) -> None:
    # GIVEN a constant of the graph's, and beside the replay a tensor like it that is there for something else
    text = BATCH.replace("KEPT", "1") + LOOP.replace("FILL", "sx.copy_(x); shown = keep * i")
    # WHEN it is diagnosed THEN nothing is told
    assert told(text, tmp_path / "program.py") == []
