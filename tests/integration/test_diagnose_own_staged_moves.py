"""Pinned memory that ``to()`` and ``cuda()`` may still read when the host writes the next batch there."""

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
PROGRAM = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

@torch.no_grad()
def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4).to(device)
    static = torch.zeros(2, 4, device=device)
    net(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = net(static)
    staging, results = torch.empty(2, 4).pin_memory(), []
    for i in range(4):
        staging.copy_(torch.full((2, 4), float(i)))
        static.copy_(staging.to(device, non_blocking=FLAG))
        g.replay()
        WAIT
        results.append(out.clone())
    return results
"""


@pytest.mark.parametrize(
    ("flag", "wait", "told"),
    [("True", "pass", True), ("True", "cuda.synchronize()", False), ("False", "pass", False)],
)
def test_the_line_that_writes_it_again_is_told(flag: str, wait: str, told: bool, tmp_path: Path) -> None:
    # GIVEN a program that stages its batches, and moves them with or without waiting for that
    names = load(PROGRAM.replace("FLAG", flag).replace("WAIT", wait), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the line that writes the next batch is told where nothing waits
    assert ["staging.copy_" in f.frame.text for f in found.failures] == [True] * told, found  # type: ignore[union-attr]
