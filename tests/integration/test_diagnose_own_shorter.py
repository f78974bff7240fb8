"""Buffers that today's input fills: what a shorter one would read there is tried with one that is shorter."""

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
SERVER = """
import dataclasses
emb = nn.Embedding(20, 4).to(device)
@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    lengths: torch.Tensor
class Server:
    @torch.no_grad()
    def __init__(self):
        self.ids = torch.zeros(3, 5, dtype=torch.long, device=device)
        self.lengths = torch.ones(3, dtype=torch.long, device=device)
        self.run()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.run()
    def run(self):
        mask = (torch.arange(5, device=device) < self.lengths[:, None])[..., None]
        h = (emb(self.ids) * mask).sum(1) / mask.sum(1)
        return MIXED
    def encode(self, ids, lengths):
        n, t = ids.shape
        self.ids[:n, :t].copy_(ids)
        self.lengths[:n].copy_(lengths)
        self.graph.replay()
        return RESULT
    def batch(self, batch):
        return self.encode(batch.ids, batch.lengths)
    def step(self):
        return self.encode(ids, lengths)
server = Server()
ids, lengths = torch.arange(15, device=device).view(3, 5), torch.tensor([3, 5, 2], device=device)
def main():
    server, kept = Server(), []
    for n in (2, 1, 3, 2, 1):
        kept.append(server.encode(ids[:n], lengths[:n]))
    return torch.cat(kept).cpu()
"""
LENGTHS = "self.lengths[:n].copy_(lengths)"
LINE, ROWS = "self.ids[:n, :t].copy_(ids)", "self.out[:n].clone()"


def _names(tmp_path: Path, mixed: str, result: str) -> dict[str, object]:
    return load(PRELUDE + SERVER.replace("MIXED", mixed).replace("RESULT", result), tmp_path / "program.py")


def _told(found: pgk.Diagnosis) -> list[tuple[str, str]]:
    return [(f.code, f.frame.text if f.frame else "") for f in found.failures]


@pytest.mark.parametrize(
    "result",
    [
        "self.out[:n].tolist()",
        *(
            pytest.param(r, marks=pytest.mark.sweep)
            for r in (ROWS, "self.out[:n].cpu().numpy()", "float(self.out[0, 0])")
        ),
    ],
)
@pytest.mark.parametrize(
    ("mixed", "lines"), [("h.softmax(0)", [LINE, LENGTHS]), ("emb(self.ids).mean(1).softmax(0)", [LINE]), ("h", [])]
)
def test_what_a_shorter_input_leaves_is_told_of_one_that_fills_all(
    mixed: str, lines: list[str], result: str, tmp_path: Path
) -> None:
    # GIVEN an encoder whose rows mix, or do not, by whatever its results go to the host
    names = _names(tmp_path, mixed, result)
    # WHEN asked with a batch that fills what its graph reads
    found = pgk.diagnose(names["server"].encode, names["ids"], names["lengths"])  # type: ignore[attr-defined]
    # THEN the lines whose rows count are told where they mix, and no others
    assert _told(found) == [("size-frozen", line) for line in lines]
    assert all("tried with one that is a row shorter" in f.message for f in found.failures)


@pytest.mark.sweep
def test_columns_that_a_shorter_input_leaves_are_tried_by_themselves(tmp_path: Path) -> None:
    # GIVEN rows that do not mix, of which no mask leaves out the end
    names = load(
        PRELUDE + SERVER.replace("MIXED", "emb(self.ids).mean(1)").replace("RESULT", ROWS), tmp_path / "program.py"
    )
    batch = names["Batch"](names["ids"], names["lengths"])
    # WHEN asked with a dataclass THEN the line is told
    assert _told(pgk.diagnose(names["server"].batch, batch)) == [("size-frozen", LINE)]


@pytest.mark.sweep
def test_an_input_that_cannot_be_made_shorter_is_noted(tmp_path: Path) -> None:
    # GIVEN a step that has its batch from a global name WHEN diagnosed
    names = _names(tmp_path, "h.softmax(0)", ROWS)
    found = pgk.diagnose(names["server"].step)  # type: ignore[attr-defined]
    # THEN what was not tried is said
    assert not found.failures
    assert "today's input fills all of self.ids[:n, :t], self.lengths[:n]" in str(found).replace("\n         ", " ")


@pytest.mark.sweep
def test_what_is_cleared_ahead_is_neither_told_nor_noted(tmp_path: Path) -> None:
    # GIVEN a server that clears what it fills, so that rows behind an input are those of its own padding
    text = SERVER.replace("MIXED", "h.softmax(0)").replace("RESULT", ROWS)
    text = text.replace(f"        {LINE}", f"        self.ids.zero_()\n        self.lengths.fill_(1)\n        {LINE}")
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN asked with a batch that fills all THEN there is nothing to say
    found = pgk.diagnose(names["server"].encode, names["ids"], names["lengths"])
    assert not found.failures
    assert "today's input fills" not in str(found)


@pytest.mark.sweep
@pytest.mark.parametrize("mixed", ["h", "h.softmax(0)"])
def test_rows_that_are_cut_off_are_none_of_a_view_that_is_kept(mixed: str, tmp_path: Path) -> None:
    # GIVEN a program that keeps the first rows as a view, where the further ones mix with them or not
    names = _names(tmp_path, mixed, "self.out[:n]")
    # WHEN diagnosed
    told = _told(pgk.diagnose(names["main"]))
    # THEN the view is told, and the rows behind it only where they mix: later replays change the view anyway
    assert any(code == "output-alias" for code, _ in told)
    assert (("size-frozen", LINE) in told) == (mixed != "h")
    assert mixed != "h" or len(told) == 1
