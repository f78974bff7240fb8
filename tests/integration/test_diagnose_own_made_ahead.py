"""Objects that a line makes ahead of the runner that keeps them: what a loop sets of them reaches its graph."""

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
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.gain = nn.Linear(8, 8, device=device), 1.0
    def forward(self, x):
        return self.lin(x) * self.gain
class Model(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head, self.scale = head, 1.0
    def forward(self, x):
        return self.head(x) / self.scale
class Runner:
    def __init__(self, model):
        self.model = model
        self.static = torch.zeros(4, 8, device=device)
        self.graph = cuda.CUDAGraph()
        with torch.no_grad():
            self.model(self.static)
            with cuda.graph(self.graph):
                self.out = self.model(self.static)
    def run(self, x):
        self.static.copy_(x)
        self.graph.replay()
        return self.out.clone()
def main():
    head, other = Head(), Model(Head())
    model = Model(head)
    model.scale = 1.0
    runner, outs = Runner(model), []
    for n in range(4):
        SET
        outs.append(runner.run(torch.ones(4, 8, device=device)))
    return torch.stack(outs)
"""


def _told(line: str, folder: Path) -> list[tuple[str, str, str]]:
    names = run(PROGRAM.replace("SET", line), folder)
    step = names["Runner"](names["Model"](names["Head"]())).run
    found = pgk.diagnose(step, torch.ones(4, 8, device=names["device"])).failures
    return [(f.code, f.frame.text, f.message.partition(" ")[0]) for f in found if f.frame]


@pytest.mark.parametrize("target", ["model.scale", "model.head.gain"])
def test_what_a_loop_sets_of_them_is_told_of_the_step_alone(target: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets a number of what the runner was made with, by the name that it had before
    line = f"{target} = 1.0 + n"
    # WHEN the runner's step alone is asked THEN that line is told
    assert _told(line, tmp_path) == [("scalar-frozen", line, target)]


@pytest.mark.parametrize("line", ["pass", "other.scale = 1.0 + n", "other.head.gain = 1.0 + n", "model.note = n"])
def test_what_others_have_is_none_of_the_graph_s(line: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets what the graph does not read WHEN the step alone is asked THEN nothing is told
    assert _told(line, tmp_path) == []
