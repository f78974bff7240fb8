"""Batches that are made on another stream and copied to a graph's input by a line that does not wait for it."""

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
    copies, results = cuda.Stream(), []
    for i in range(4):
        with cuda.stream(copies):
            batch = torch.full((2, 4), float(i), device=device) * 2
        WAIT
        batch.record_stream(cuda.current_stream())
        static.copy_(batch)
        g.replay()
        results.append(out.clone())
    return results
"""


@pytest.mark.parametrize(
    ("wait", "told"),
    [("pass", True), ("cuda.current_stream().wait_stream(copies)", False), ("copies.synchronize()", False)],
)
def test_the_line_that_reads_it_too_early_is_told(wait: str, told: bool, tmp_path: Path) -> None:
    # GIVEN such a program, with and without waiting
    names = load(PROGRAM.replace("WAIT", wait), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the line that copies it to the input is told where nothing waits
    assert ["static.copy_(batch)" in f.frame.text for f in found.failures] == [True] * told, found  # type: ignore[union-attr]
