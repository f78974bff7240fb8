"""Tensors that a ``partial`` holds which a capture has called, and that another one holds behind it."""

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
from functools import partial
def weighted(out, weights):
    return (out.square() * weights).mean()
class Trainer:
    def __init__(self):
        self.x, self.graph = torch.zeros(4, 3, device=device), None
        self.weigh(0)
    def weigh(self, epoch):
        weights = torch.ones(3, device=device) / (1 + epoch)
        LINE
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.loss(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.loss(self.x)
        self.graph.replay()
        return self.out.clone()
def main():
    trainer, total = Trainer(), 0.0
    for epoch in range(3):
        trainer.weigh(epoch)
        for _ in range(2):
            total += float(trainer.step(torch.ones(4, 3, device=device)))
    return total
"""
WAYS = {
    "self.loss = partial(weighted, weights=weights)": "self.loss.keywords['weights']",
    "self.loss = partial(lambda w, out: weighted(out, w), weights)": "self.loss.args[0]",
}


def told(tmp_path: Path, line: str) -> list[tuple[str, str]]:
    """What is told of such a program, and the words."""
    names = load(PRELUDE + PROGRAM.replace("LINE", line), tmp_path / "program.py")
    with quiet():
        return [(f.code, f.fix.partition("after   ")[2]) for f in pgk.diagnose(names["main"]).failures]


@pytest.mark.parametrize("line", WAYS)
def test_a_tensor_that_another_partial_holds_is_told_where_that_is_made(tmp_path: Path, line: str) -> None:
    # GIVEN a loss that is another partial, with other weights, in each epoch
    # WHEN it is diagnosed
    words = f"`if hasattr(self, 'loss'): {WAYS[line]}.copy_(weights)`, and else this line as it is"
    # THEN the line that makes it is told, and what is written there
    assert told(tmp_path, line) == [("stale-input", words)]
    # AND nothing is left where that is followed
    followed = f"if hasattr(self, 'loss'): {WAYS[line]}.copy_(weights)\n        else: {line}"
    assert told(tmp_path, followed) == []
