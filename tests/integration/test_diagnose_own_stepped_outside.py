"""Rates of an optimizer that a capture only hands on are no numbers of its graph: it is stepped behind each launch."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.programs.running import load

PROGRAM = """import torch
import paramgraph_kit as pgk
device = pgk.device()
def learn(model, optimizer, x):
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    loss.backward()
    INSIDE
    return loss.detach()
def main():
    model = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
    x = torch.ones(2, 4, device=device)
    s = pgk.cuda.Stream()
    s.wait_stream(pgk.cuda.current_stream())
    with pgk.cuda.stream(s):
        learn(model, optimizer, x)
        optimizer.step()
    pgk.cuda.current_stream().wait_stream(s)
    g = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(g):
        loss = learn(model, optimizer, x)
    for i in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (i + 1)
        x.copy_(torch.full((2, 4), float(i)))
        g.replay()
        BEHIND
    return loss.item()
"""


@pytest.mark.parametrize(
    ("inside", "behind", "told"), [("pass", "optimizer.step()", 0), ("optimizer.step()", "pass", 1)]
)
def test_a_rate_is_told_where_the_capture_steps_with_it(inside: str, behind: str, told: int, tmp_path: Path) -> None:
    # GIVEN a loop that sets the rate ahead of each launch, and a step inside of the capture or behind each launch
    text = PROGRAM.replace("INSIDE", inside).replace("BEHIND", behind)
    main = load(text, tmp_path / "program.py")["main"]

    # WHEN it is diagnosed THEN the rate is told where the graph has it
    assert [f.code for f in pgk.diagnose(main).failures] == ["learning-rate-frozen"] * told
