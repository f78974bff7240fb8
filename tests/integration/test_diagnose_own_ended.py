"""A program of own captures that ends in an error before it comes to one: the error is told, and no line around."""

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
RUNNER = """
class Runner:
    def __init__(self, model, shape, classes):
        self.x = torch.zeros(shape, device=device)
        y = model(self.x)
        print("warm", y.mean().item())
        if y.shape[-1] != classes:
            raise ValueError(f"expected {classes} classes, got {y.shape[-1]}")
        CAPTURE
def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    runner = Runner(model, (2, 4), CLASSES)
    return [runner.y.argmax(-1).tolist() for _ in range(2)]
"""
CAPTURE = """
        self.graph = cuda.CUDAGraph()
        with torch.no_grad(), cuda.graph(self.graph):
            self.y = model(self.x)
"""


def test_only_the_error_is_told_of_a_program_that_has_not_come_to_its_captures(tmp_path: Path) -> None:
    # GIVEN a program that raises behind its warm-up
    main = run(RUNNER.replace("CAPTURE", CAPTURE).replace("CLASSES", "3"), tmp_path)["main"]
    # WHEN it is diagnosed
    found = pgk.diagnose(main)
    # THEN what it does around a capture of its own is none of its problems
    assert [f.code for f in found.failures] == ["raises"]
    assert any("before it captures" in note for note in found.notes)


def test_lines_of_a_function_that_raises_and_captures_nothing_are_told(tmp_path: Path) -> None:
    # GIVEN the same without a capture of its own WHEN diagnosed
    main = run(RUNNER.replace("CAPTURE", "self.y = y").replace("CLASSES", "3"), tmp_path)["main"]
    # THEN its lines would be in one
    assert {"raises", "sync-item"} <= {f.code for f in pgk.diagnose(main).failures}
