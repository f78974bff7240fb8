"""The best of several results: kept beside its score, and weights that are given another module's memory."""

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
SEARCH = """
def main():
    w, other = nn.Parameter(torch.randn(4, device=device)), nn.Parameter(torch.randn(4, device=device))
    x = torch.zeros(4, device=device)
    g = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(g):
        y, z = x * w, x + w
    best, score = None, -1e9
    for i in range(4):
        x.copy_(torch.full((4,), 1.0 + i, device=device))
        g.replay()
        now = float(y.abs().sum().item())
        if now > score and i != 2:
            KEEPS
    return best
"""
KEPT = {
    "best, score = y, now": "best, score = (y.clone(), now)",
    "best = (y, i)": "best = (y.clone(), i)",
    "score, best = now, y": "score, best = (now, y.clone())",
}


def found_in(text: str, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is told of a program's ``main``."""
    found = pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"]).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix) for f in found]


@pytest.mark.parametrize("line", KEPT)
def test_a_result_that_is_kept_beside_what_is_none_is_told_with_its_copy(line: str, tmp_path: Path) -> None:
    # GIVEN a loop that keeps its best result with a score, or a number, by one line
    program = SEARCH.replace("KEEPS", line)
    # WHEN
    found = found_in(program, tmp_path)
    # THEN it is told at that line, and what is copied is the result alone
    before = line if "(" in line else line.replace("= ", "= (") + ")"
    assert found == [("output-alias", line, f"before  {before}\nafter   {KEPT[line]}")]


@pytest.mark.parametrize("line", ["best, score = y.clone(), now", "best = y.sum().item()", "cur, nxt = y, z"])
def test_a_copy_a_number_and_a_choice_among_results_are_none(line: str, tmp_path: Path) -> None:
    # GIVEN a loop that keeps a copy, or a number, or gives its results other names
    program = SEARCH.replace("KEEPS", line)
    # WHEN
    found = found_in(program, tmp_path)
    # THEN
    assert not found


def test_a_line_that_is_written_in_place_is_not_told_to_keep_a_copy_of_what_it_reads(tmp_path: Path) -> None:
    # GIVEN weights that are given another parameter's memory ahead of a replay
    program = SEARCH.replace("g.replay()\n", "w.data = other.data\n        g.replay()\n").replace("KEEPS", "best = now")
    # WHEN
    found = found_in(program, tmp_path)
    # THEN its words are of that line, as it is written in place
    assert [(code, fix) for code, _, fix in found] == [
        ("parameter-rebound", "before  w.data = other.data\nafter   w.data.copy_(other.data)")
    ]
