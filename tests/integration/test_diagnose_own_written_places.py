"""A place that moves on behind each replay and that a capture writes to: an index of the device is no ``x[n] = y``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
DECODER = """
class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.ones(2, 3, 8, device=device))
    def forward(self, x, pos):
        WRITE
        return self.k.sum(-1) + x
class Decoder:
    def __init__(self):
        self.cache, self.x, self.pos = Cache(), torch.ones(2, 3, device=device), 0
        self.graph = None
    def work(self):
        self.y = self.cache(self.x, self.pos)
    def step(self, graphed):
        if graphed and self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.work()
        self.graph.replay() if graphed else self.work()
        self.pos += 1
        return self.y.clone()
def main(graphed=True):
    decoder = Decoder()
    return torch.stack([decoder.step(graphed) for _ in range(5)])
"""
WAYS = [
    ("self.k[:, :, pos] = x * 2", "y", "x * 2"),
    pytest.param("self.k[:, :, pos] = 0", "0", "0", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("write", "kind", "given"), WAYS, ids=["copied", "filled"])
def test_a_write_at_a_place_that_moves_on_is_told(write: str, kind: str, given: str, tmp_path: Path) -> None:
    # GIVEN a step whose module writes to a cache at a place that it is given by another name
    text = DECODER.replace("WRITE", write)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, and the words for such a write are followed
    (told,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    found = re.search(rf"`(x\.index_[^`]*)` for (?:a write )?`x\[:, self\.pos\] = {kind}`", told.fix)
    assert found, told.fix
    new = found[1].replace("y.expand", f"({given}).expand").replace("x.", "self.k.", 1).replace("(x.sel", "(self.k.sel")
    new = re.sub(r"(?<=[(_])1(?=[,)])", "2", new).replace("self.pos_in.reshape(2)", "pos.reshape(1)")
    mended = text.replace(write, new).replace("(self.x, self.pos)", "(self.x, self.pos_in)")
    made = "self.pos_in = torch.full((), self.pos, device=device)"
    mended = mended.replace("        self.graph = None\n", f"        {made}\n        self.graph = None\n")
    filled = "        self.pos_in.fill_(self.pos)\n"
    mended = mended.replace("        self.graph.replay()", f"{filled}        self.graph.replay()")
    (tmp_path / "mended").mkdir()
    after = run(mended, tmp_path / "mended")["main"]
    # THEN it captures, and gives what it gives without a graph
    assert torch.equal(after(), main(graphed=False))


ADDED = DECODER.replace("self.y = self.cache(self.x, self.pos)", "WRITE; self.y = self.cache.k.sum(-1)").replace(
    "        WRITE\n        return", "        return"
)


@pytest.mark.sweep
def test_what_is_added_at_a_place_that_moves_on_is_told_as_a_write(tmp_path: Path) -> None:
    # GIVEN a step that adds to what a cache has at a place
    write = "self.cache.k[:, :, self.pos] += self.x * 2"
    text = ADDED.replace("WRITE", write)
    main = run(text, tmp_path)["main"]
    # WHEN it is diagnosed, and the line is written as told
    (told,) = [f for f in pgk.diagnose(main).failures if f.code == "scalar-frozen"]
    found = re.search(r"`(self.pos_in = [^`]*)`, captured is `([^`]*)` for", told.fix)
    assert found, told.fix
    mended = text.replace(write, found[2]).replace(
        "        self.graph = None\n", f"        self.graph = None; {found[1]}\n"
    )
    filled = "        self.pos_in.fill_(self.pos)\n"
    mended = mended.replace("        self.graph.replay()", f"{filled}        self.graph.replay()")
    (tmp_path / "mended").mkdir()
    # THEN it gives what it gives without a graph
    assert torch.equal(run(mended, tmp_path / "mended")["main"](), main(graphed=False))


def test_a_write_at_a_place_of_the_device_is_no_problem(tmp_path: Path) -> None:
    # GIVEN the same with a place that each step adds to in place
    write = "self.k.index_copy_(2, pos.reshape(1), (x * 2).unsqueeze(2))"
    text = DECODER.replace("WRITE", write).replace(
        "device=device), 0\n", "device=device), torch.zeros((), device=device).long()\n"
    )
    text = text.replace("        self.pos += 1\n", "        self.pos.add_(1)\n")
    # WHEN it is diagnosed
    # THEN nothing is told
    assert not pgk.diagnose(run(text, tmp_path)["main"]).failures
