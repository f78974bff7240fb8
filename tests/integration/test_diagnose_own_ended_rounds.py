"""Rounds of what a graph holds that end, or leave lines out, by a number that is set between its replays: the words."""

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
class Early:
    def __init__(self):
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)
        self.x, self.last, self.graph = torch.zeros(4, 8, device=device), 4, None
    def work(self):
        h = self.x
        for i, layer in enumerate(self.layers):
            if i >= self.last:
                LEAVE
            h = layer(h).relu()
        return h
    @torch.no_grad()
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.work()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.work()
        self.graph.replay()
        return self.out.clone()
def main():
    early, outs = Early(), []
    for n in range(6):
        SET
        outs.append(early.step(torch.ones(4, 8, device=device)))
    return torch.stack(outs)
"""


@pytest.mark.parametrize(
    ("leave", "does"),
    [("break", "ends the rounds"), ("return h", "ends the rounds"), ("continue", "leaves the rest of a round out")],
)
def test_what_ends_rounds_has_a_graph_for_each_value(leave: str, does: str, tmp_path: Path) -> None:
    # GIVEN a branch of a loop that assigns nothing, by a number that a loop around the step sets
    text = PROGRAM.replace("LEAVE", leave).replace("SET", "early.last = 2 + n % 3")
    names = run(text, tmp_path)
    # WHEN its step alone is asked
    found = pgk.diagnose(names["Early"]().step, torch.ones(4, 8, device=names["device"])).failures
    # THEN it is told with a graph for each value, and not with a choice of what it assigns
    assert [f.code for f in found] == ["branch-frozen"]
    assert f"`i >= self.last` {does}" in found[0].fix
    assert "`graphs[self.last]`" in found[0].fix
    assert "torch.where" not in found[0].fix


def test_rounds_that_end_alike_are_right(tmp_path: Path) -> None:
    # GIVEN the same whose number stays WHEN its step, or its program, is asked THEN nothing is told
    names = run(PROGRAM.replace("LEAVE", "break").replace("SET", "pass"), tmp_path)
    assert not pgk.diagnose(names["Early"]().step, torch.ones(4, 8, device=names["device"])).failures
    assert not pgk.diagnose(names["main"]).failures
