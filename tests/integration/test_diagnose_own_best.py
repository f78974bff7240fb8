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


CHOSEN = """
class Search:
    def __init__(self):
        self.x, self.w = torch.zeros(4, device=device), torch.randn(4, device=device)
        self.best, self.deep = None, True
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x * self.w
    def better(self):
        return self.best is None or bool(self.y.sum() > self.best.sum())
    def known(self):
        return self.deep
    def search(self, points, keep):
        best = self.best = None
        for p, ok in zip(points, keep):
            self.x.copy_(p)
            self.graph.replay()
            KEEPS
        return best, self.best
s = Search()
def main():
    return s.search(torch.ones(4, 4, device=device), [True, False, True, False])
"""
BY_CHOICE = {
    "if self.better(): self.best = self.y": "self.best = self.y.clone()",
    "if ok: self.best = self.y": "self.best = self.y.clone()",
    "best = self.y if ok else best": "best = self.y.clone() if ok else best",
    "best = best if not ok else self.y": "best = best if not ok else self.y.clone()",
}


@pytest.mark.parametrize("line", BY_CHOICE)
def test_a_result_of_some_rounds_is_told_by_whatever_is_another_in_each(line: str, tmp_path: Path) -> None:
    # GIVEN a loop in a method, called by a function, that keeps a result where a method, or a flag of the round, says
    # WHEN diagnosed THEN the line is told once, with its copy
    found = found_in(CHOSEN.replace("KEEPS", line), tmp_path)
    assert [(code, fix.partition("after   ")[2]) for code, _, fix in found] == [("output-alias", BY_CHOICE[line])]


@pytest.mark.parametrize(
    "line", ["if self.known(): self.best = self.y", "best = self.y.clone() if ok else best", "best = self.y"]
)
def test_what_all_rounds_keep_and_a_copy_are_none(line: str, tmp_path: Path) -> None:
    # GIVEN the same, where a setting decides, a copy is kept, or the last result is meant WHEN THEN nothing is told
    assert found_in(CHOSEN.replace("KEEPS", line), tmp_path) == []


FILLED = """
x, w = torch.zeros(4, device=device), torch.ones(4, device=device)
g = cuda.CUDAGraph()
with cuda.graph(g):
    y = x * w
def run(point, out):
    x.copy_(point)
    g.replay()
    out["logits"] = y
    out["size"] = len(point)
def main():
    results = MADE
    for n, r in enumerate(results):
        run(torch.full((4,), float(n), device=device), r)
    return [r["logits"] for r in results]
"""


@pytest.mark.parametrize("made", ["[{} for _ in range(3)]", "[dict() for _ in range(3)]"])
def test_entries_that_are_made_empty_are_told_where_a_result_is_put_into_them(made: str, tmp_path: Path) -> None:
    # GIVEN dictionaries in a list, to which a function gives its graph's result WHEN
    found = found_in(FILLED.replace("MADE", made), tmp_path)
    # THEN its line is told, and not the one that makes them
    line = "out['logits'] = y"
    assert found == [("output-alias", 'out["logits"] = y', f"before  {line}\nafter   {line}.clone()")]


ROWS = {
    'kept[n] = {"size": len(x), "y": y}': "kept[n] = {'size': len(x), 'y': y.clone()}",
    'kept[n] = {"size": n, "y": y, "s": y.sum()}': "kept[n] = {'size': n, 'y': y.clone(), 's': y.sum()}",
    "kept[n] = dict(size=n, y=y)": "kept[n] = dict(size=n, y=y.clone())",
}


@pytest.mark.parametrize("line", ROWS)
def test_a_dictionary_that_is_kept_has_a_copy_of_its_tensors_alone(line: str, tmp_path: Path) -> None:
    # GIVEN a table of dictionaries with a result and numbers WHEN
    program = FILLED.replace("results = MADE", "kept = {}").replace(
        "for n, r in enumerate(results)", "for n in range(3)"
    )
    program = program.replace("float(n), device=device), r)", f"float(n), device=device), {{}})\n        {line}")
    found = found_in(program.replace('[r["logits"] for r in results]', "kept"), tmp_path)
    # THEN what is written can be run
    assert [fix.partition("after   ")[2] for _, _, fix in found] == [ROWS[line]]
