"""Tensors in keywords that a wrapper copies nowhere, where the step around it alone is asked."""

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
REPLAY = "        graph.replay()\n"
WRAPPER = """
class Wrapper:
    def __init__(self, fn):
        self.fn, self.made = fn, None
    def record(self, given, OPTIONS):
        self.fn(*given, **options)
        graph = cuda.CUDAGraph()
        # ahead
        with cuda.graph(graph):
            out = self.fn(*given, **options)
        return graph, given, out
    def __call__(self, *given, **named):
        if self.made is None:
            self.made = self.record([t.clone() for t in given], HANDED)
        graph, held, out = self.made
        for s, t in zip(held, given):
            s.copy_(t)
        graph.replay()
        return out.clone()
class Scorer:
    def __init__(self, is_graphed=True):
        self.forward = Wrapper(score) if is_graphed else score
    def answer(self, x, weights):
        return self.forward(x, scale=weights)
def score(x, scale):
    return (x * scale).sum(-1)
"""
WAYS = {"a dictionary": ("options", "named"), "keywords": ("**options", "**named")}


@pytest.mark.parametrize("way", WAYS)
def test_the_copy_of_a_keyword_comes_ahead_of_the_replay(way: str, tmp_path: Path) -> None:
    # GIVEN a wrapper whose graph reads a keyword's first tensor, and nothing else of it
    options, handed = WAYS[way]
    text = WRAPPER.replace("OPTIONS", options).replace("HANDED", handed)
    names = run(text, tmp_path)
    given = [torch.ones(2, 3, device=pgk.device()), torch.ones(3, device=pgk.device())]
    # WHEN a step is asked, and what is said is followed to the letter
    told = [f for f in pgk.diagnose(names["Scorer"]().answer, *given).failures if f.code == "stale-input"]
    assert len(told) == 1
    filled, _, ahead = told[0].fix.partition("after   ")[2].partition(", and ahead of the capture")
    (made,) = ahead.split("`")[1::2]
    text = text.replace(REPLAY, f"        {filled}\n").replace("# ahead", made)
    (tmp_path / "mended").mkdir()
    mended = run(text, tmp_path / "mended")["Scorer"]
    # THEN it gives what it gives without graphs, and nothing is told any more
    ours, eager = mended(), names["Scorer"](is_graphed=False)
    for n in range(4):
        x, weights = given[0] + n, given[1] * n
        assert torch.equal(ours.answer(x, weights), eager.answer(x, weights))
    assert not pgk.diagnose(mended().answer, *given).failures
