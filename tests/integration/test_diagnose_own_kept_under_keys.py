"""Results that a loop keeps under keys, in lists that begin with the first of them: the lines that keep results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
def capture(fn, x):
    static = x.clone()
    fn(static)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = fn(static)
    def replay(x):
        static.copy_(x)
        graph.replay()
        return out
    return replay
def main():
    step = capture(lambda x: (x.relu(), x.mean(0)), torch.zeros(4, 8, device=device))
    table, rows = {}, []
    for n in range(4):
        h, m = step(torch.full((4, 8), float(n), device=device))
        table.setdefault("h", []).append(h.sum())
        KEEP
    return table["h"]
"""
KEPT = {
    'table.setdefault("m", []).append(m)': "table.setdefault('m', []).append(m.clone())",
    'table.setdefault("m", list()).extend([m])': "table.setdefault('m', list()).extend([m.clone()])",
    "table.setdefault(n, m)": "table.setdefault(n, m.clone())",
}
RIGHT = ('table.setdefault("m", []).append(m.clone())', 'table.setdefault("m", []).append(m * 2)', "pass")


@pytest.mark.parametrize(("keep", "words"), KEPT.items(), ids=KEPT)
def test_only_the_line_that_keeps_a_result_is_told_with_a_copy_of_it(keep: str, words: str, tmp_path: Path) -> None:
    # GIVEN lists under keys, of which one has what is computed of a result, and another the result itself
    main = run(PROGRAM.replace("KEEP", keep), tmp_path)["main"]
    # WHEN it is diagnosed
    found = pgk.diagnose(main).failures
    # THEN the one line is told, and its words have a copy of what it keeps
    assert [(f.code, f.fix.partition("\nafter   ")[2]) for f in found] == [("output-alias", words)]
    (tmp_path / "mended").mkdir()
    assert not pgk.diagnose(run(PROGRAM.replace("KEEP", words), tmp_path / "mended")["main"]).failures


@pytest.mark.parametrize("keep", RIGHT)
def test_what_is_computed_of_results_is_kept_as_it_is(keep: str, tmp_path: Path) -> None:
    # GIVEN lists under keys of what has memory of its own WHEN it is diagnosed THEN nothing is told
    assert not pgk.diagnose(run(PROGRAM.replace("KEEP", keep), tmp_path)["main"]).failures
