"""Rows and tables of tensors that one line alone makes: words that write to them leave the first ones to that line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
DECODER = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
class Decoder:
    def __init__(self):
        self.x = torch.zeros(2, 4, device=device)
        BEGIN
    def start(self):
        self.hear(torch.zeros(2, 4, device=device))
        self.one()
        self.graph = cuda.CUDAGraph()
        with torch.no_grad(), cuda.graph(self.graph):
            self.y = self.one()
    def hear(self, sound):
        HEAR
    def one(self):
        return self.x + READ
    def step(self, sound):
        self.hear(sound)
        self.graph.replay()
        return self.y.clone()
decoder = Decoder()
decoder.start()
"""
ALL = "sum(t for row in self.cross for t in row)"
NESTED = "self.cross = [[t * 2 for t in (sound, sound + 1)] for _ in range(2)]"
ROW = "self.cross = [sound * i for i in range(2)]"
TABLE = "self.cross = {'k': sound * 2}"
MADE = {  # what begins it, the line, what reads it, and where it is there
    "rows of rows": ("pass", NESTED, ALL, "hasattr(self, 'cross')"),
    "a row": ("pass", ROW, "sum(self.cross)", "hasattr(self, 'cross')"),
    "a row that is empty": ("self.cross = []", ROW, "sum(self.cross)", "self.cross"),
    "a table": ("pass", TABLE, "self.cross['k']", "hasattr(self, 'cross')"),
    "a table that is empty": ("self.cross = {}", TABLE, "self.cross['k']", "self.cross"),
}
SHORT = ("a table that is empty",)


def _asked(begin: str, line: str, read: str, path: Path) -> list[str]:
    text = DECODER.replace("BEGIN", begin).replace("HEAR", line).replace("READ", read)
    return [
        f.fix for f in pgk.diagnose(load(text, path)["decoder"].step, torch.ones(2, 4, device=pgk.device())).failures
    ]


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.sweep] * (each not in SHORT)) for each in MADE])
def test_a_line_that_makes_what_it_writes_makes_it_first(name: str, tmp_path: Path) -> None:
    # GIVEN a method that alone gives its object a list, or a dictionary, ahead of the capture, too WHEN it is told
    begin, line, read, there = MADE[name]
    (fix,) = _asked(begin, line, read, tmp_path / "program.py")
    # THEN its words write in place only where there is something to write to
    copied = fix.partition("`, `")[2].partition("`, and else this line as it is")[0]
    assert f"where `{there}`, `for " in fix
    assert copied.endswith(".copy_(new)")
    # AND followed to the letter they mend it
    both = f"if {there}:\n            {copied}\n        else:\n            {line}"
    assert _asked(begin, both, read, tmp_path / "mended.py") == []


def test_what_is_made_with_its_object_is_written_in_place(tmp_path: Path) -> None:
    # GIVEN the same of a list that `__init__` makes WHEN it is told THEN its words ask for nothing
    begin = "self.cross = [torch.zeros(2, 4, device=device) for _ in range(2)]"
    (fix,) = _asked(begin, ROW, "sum(self.cross)", tmp_path / "program.py")
    assert fix.partition("after   ")[2].startswith("for held, new in zip(self.cross, ")
