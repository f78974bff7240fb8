"""Inputs of graphs that are given a tensor of another rank or type, also in a table that a step is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.trace.model import Failure
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.usefixtures("recovered")
BUCKETS = """
class Runner:
    def __init__(self):
        n, self.out, self.graphs = torch.ones(4, 6, device=device), torch.zeros(4, device=device), {}
        for b in (4, 2):
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                self.out[:b] = n[:b].sum(-1)
            self.graphs[b] = g
        self.n = n
    def run(self, n):
        GIVEN
        self.graphs[len(n)].replay()
        return self.out[: len(n)].clone()
def step(runner, n):
    return runner.run(n)
def make():
    return Runner()
"""
TABLE = """
def make():
    s = dict(n=torch.ones(4, 6, device=device))
    s["g"] = cuda.CUDAGraph()
    with cuda.graph(s["g"]):
        s["out"] = s["n"] * 2
    return s
def step(s, n):
    GIVEN
    s["g"].replay()
    return s["out"].clone()
"""
DEEP: tuple[pytest.MarkDecorator, ...] = (pytest.mark.sweep,)
TOLD: dict[str, tuple[str, str, tuple[pytest.MarkDecorator, ...]]] = {
    "one row more": (BUCKETS, "self.n = n[None] + 0", ()),
    "whole numbers": (BUCKETS, "self.n = (n * 2).long()", DEEP),
    "a table": (TABLE, 's["n"] = n + 0', DEEP),
    "a table's row": (TABLE, 's["n"] = n[0] + 0', ()),
    "a table's flags": (TABLE, 's["n"] = n > 2', DEEP),
}
CASES = [pytest.param(text, given, id=name, marks=marks) for name, (text, given, marks) in TOLD.items()]


def _diagnosed(text: str, given: str, file: Path, rows: int) -> tuple[dict[str, object], list[Failure]]:
    names = load(PRELUDE + text.replace("GIVEN", given), file)
    x = torch.full((rows, 6), 3.0, device=names["device"])
    return names, [*pgk.diagnose(names["step"], names["make"](), x).failures]


@pytest.mark.parametrize(("text", "given"), CASES)
def test_a_tensor_of_another_kind_in_place_of_what_a_graph_reads_is_told(text: str, given: str, tmp_path: Path) -> None:
    # GIVEN a graph's input, whose place is given a tensor of another rank or type, which operations take as well
    # WHEN the step is asked
    _, found = _diagnosed(text, given, tmp_path / "program.py", 4)
    # THEN the line that gives it is told, and its words, when followed, give eager's numbers, and no problem
    assert [(f.code, f.frame and f.frame.text) for f in found] == [("stale-input", given)]
    words = found[0].fix.partition("\nafter   ")[2]
    (tmp_path / "mended").mkdir()
    names, left = _diagnosed(text, words, tmp_path / "mended" / "program.py", 4)
    assert not left
    made = names["make"]()  # type: ignore[operator]
    for number in range(3):
        x = torch.full((4, 6), 3.0 + number, device=names["device"])  # type: ignore[call-overload]
        seen = (x * 2).long() if "long" in given else (x > 2).float() if ">" in given else x
        eager = seen.float().sum(-1) if text is BUCKETS else seen * 2
        assert torch.equal(names["step"](made, x), eager), words  # type: ignore[operator]


def test_what_no_copy_makes_is_made_ahead_of_the_capture(tmp_path: Path) -> None:
    # GIVEN an input of whole numbers that is given fractions, WHEN the step is asked
    text = TABLE.replace("torch.ones(4, 6, ", "torch.ones(4, 6, dtype=torch.long, ")
    _, found = _diagnosed(text, 's["n"] = n / 2', tmp_path / "program.py", 4)
    # THEN its words have the input made of that type, since a copy would cut the fractions off
    assert [f.code for f in found] == ["stale-input"]
    assert "torch.zeros((4, 6), dtype=torch.float32, device=s['n'].device) ahead of its capture" in found[0].fix


SOUND: dict[str, tuple[str, str, tuple[pytest.MarkDecorator, ...]]] = {
    "in place": (TABLE, 's["n"].copy_(n)', ()),
    "another entry": (TABLE, 's["n"].copy_(n); s["last"] = n[0] > 2', DEEP),
    "a count": (BUCKETS, "self.n[: len(n)].copy_(n); self.seen = len(n)", DEEP),
    "taken out and put back": (TABLE, 'held = s.pop("n"); held.copy_(n); s["n"] = held', DEEP),
}


@pytest.mark.parametrize(("text", "given"), [pytest.param(t, g, id=n, marks=m) for n, (t, g, m) in SOUND.items()])
def test_what_is_written_in_place_is_no_problem(text: str, given: str, tmp_path: Path) -> None:
    # GIVEN inputs that are written in place, WHEN the step is asked, THEN nothing is told
    assert not _diagnosed(text, given, tmp_path / "program.py", 4)[1]
