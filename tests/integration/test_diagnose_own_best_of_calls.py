"""The best of what a method's replays give, kept as a part of several: ``best = (score, out)``."""

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
class Ranker:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(4, 3, device=device)
        self.x = torch.zeros(2, 4, device=device)
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = torch.tanh(self.x @ self.w)
    def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y
    def rank(self, batches):
        best, scores = None, []
        for n, batch in enumerate(batches):
            GETS
            score = out.mean()
            scores.append(score)
            if TEST:
                KEEPS
        return best, torch.stack(scores)
ranker = Ranker()
rank, args = ranker.rank, (torch.randn(4, 2, 4, device=device),)
"""
CALL, INLINE = "out = self.run(batch)", "self.x.copy_(batch); self.graph.replay(); out = self.y"
KEPT = {
    ("best is None or score > best[0]", "best = (score, out)"): "best = (score, out.clone())",
    (
        "best is None or score > best['score']",
        "best = {'score': score, 'out': out}",
    ): "best = {'score': score, 'out': out.clone()}",
    ("best is None or score > best[1]", "best = [out, score, n]"): "best = [out.clone(), score, n]",
}


def told(program: str, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is told of a program's ``rank``."""
    names = load(PRELUDE + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["rank"], *names["args"]).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize("gets", [CALL, INLINE])
@pytest.mark.parametrize("kept", KEPT)
def test_a_result_that_some_rounds_keep_beside_its_score_is_told(
    kept: tuple[str, str], gets: str, tmp_path: Path
) -> None:
    # GIVEN a loop that keeps the best result with its score
    program = PROGRAM.replace("TEST", kept[0]).replace("KEEPS", kept[1]).replace("GETS", gets)
    # WHEN
    found = told(program, tmp_path)
    # THEN its line is told, with a copy of what is the graph's memory
    assert found == [("output-alias", kept[1], KEPT[kept])]


@pytest.mark.parametrize("gets", [CALL, INLINE])
@pytest.mark.parametrize("line", ["best = (score, out.clone())", "best = (score, out.sum(0))", "best = (score, n)"])
def test_what_has_memory_of_its_own_is_kept_rightly(line: str, gets: str, tmp_path: Path) -> None:
    # GIVEN the same with a copy, or with what is computed of the result
    program = PROGRAM.replace("TEST", "best is None or score > best[0]").replace("KEEPS", line).replace("GETS", gets)
    # WHEN
    found = told(program, tmp_path)
    # THEN
    assert not found
