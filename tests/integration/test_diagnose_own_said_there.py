"""What a line sets of an object that a graph reads: told once, at that line, and by the name that it has there."""

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
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.scale = nn.Linear(8, 8, device=device), nn.Linear(8, 4, device=device), 1.0
        self.bias = torch.zeros(8, device=device)
    def forward(self, x):
        return self.head(self.body(x) * self.scale + self.bias)
class Runner:
    def __init__(self, model):
        self.model, self.x, self.graph = model, torch.zeros(2, 8, device=device), cuda.CUDAGraph()
        with torch.no_grad():
            self.model(self.x)
            with cuda.graph(self.graph):
                self.out = self.model(self.x)
    def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
def main():
    torch.manual_seed(0)
    model = Model()
    runner, outs = Runner(model), []
    for n in range(4):
        SET
        outs.append(runner.run(torch.ones(2, 8, device=device)))
    return torch.stack(outs)
"""
SET = {
    "model.scale = 1.0 + n": "model.scale is 2.0 at a replay",
    "runner.model.scale = 1.0 + n": "runner.model.scale is 2.0 at a replay",
    "model.bias = torch.full((8,), float(n), device=device)": "model.bias has other memory from here on",
    "model.head = nn.Linear(8, 4, device=device)": "head.weight of self.model has other memory from here on",
}


@pytest.mark.parametrize(("line", "said"), SET.items(), ids=SET)
def test_it_is_told_once_by_the_name_that_it_has_there(line: str, said: str, tmp_path: Path) -> None:
    # GIVEN a line between replays that sets something of a module, which that reads as `self.`
    main = run(PROGRAM.replace("SET", line), tmp_path)["main"]
    # WHEN it is diagnosed
    found = pgk.diagnose(main).failures
    # THEN that line alone is told, and says what it is called there
    assert [(f.frame.text, f.message.partition(", ")[0]) for f in found if f.frame] == [(line, said)]


@pytest.mark.parametrize("line", ["pass", "model.bias.fill_(n)", "model.note = n"])
def test_what_no_graph_has_kept_is_right(line: str, tmp_path: Path) -> None:
    # GIVEN lines that write in place, or set what nothing reads WHEN it is diagnosed THEN nothing is told
    assert not pgk.diagnose(run(PROGRAM.replace("SET", line), tmp_path)["main"]).failures


def test_a_module_that_a_step_of_its_own_class_exchanges_is_told_once(tmp_path: Path) -> None:
    # GIVEN a method that replays, and gives its object another module now and then
    gives = "out = self.out.clone()\n        self.exchange()\n        return out"
    text = PROGRAM.replace("return self.out.clone()", gives)
    exchange = "    def exchange(self):\n        self.model.head = nn.Linear(8, 4, device=device)\ndef main"
    main = run(text.replace("def main", exchange).replace("SET", "pass"), tmp_path)["main"]
    # WHEN it is diagnosed THEN the line that does so is told, and not the one that reads it
    found = pgk.diagnose(main).failures
    assert [f.frame.text for f in found if f.frame] == ["self.model.head = nn.Linear(8, 4, device=device)"]
