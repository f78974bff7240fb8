"""A captured forward pass whose weights are exchanged by ``.data``: what else it reads has lines of its own."""

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
EVALUATED = """
class Evaluator:
    def __init__(self, model):
        self.model, self.ema = model, [0.9 * p.detach().clone() for p in model.parameters()]
        self.x = torch.zeros(8, 6, device=device)
        with torch.no_grad():
            self.forward()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.probs = self.forward()
    def forward(self):
        return torch.softmax(self.model(self.x), dim=-1)
    @torch.no_grad()
    def evaluate(self, x):
        self.model.eval()
        backup = [p.data for p in self.model.parameters()]
        for p, e in zip(self.model.parameters(), self.ema):
            p.data = e
        self.x = x
        self.graph.replay()
        for p, old in zip(self.model.parameters(), backup):
            p.data = old
        return self.probs.clone()
evaluator = Evaluator(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).to(device))
def f(x):
    return evaluator.evaluate(x)
args = (torch.randn(8, 6, device=device),)
"""


def test_an_input_and_a_mode_are_told_at_their_lines_beside_weights_that_are_exchanged(tmp_path: Path) -> None:
    # GIVEN an evaluation that gives weights, an input and a mode that a capture does not see
    names = run(EVALUATED, tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the first answer has each at its own line
    told = {f.frame.text: f for f in found if f.frame is not None}
    assert {f.code for f in found} == {"branch-frozen", "parameter-rebound", "stale-input"}
    mode = told["self.model.eval()"].fix
    assert mode.startswith("before  self.model.eval()\nafter   this line as it is, and a graph for each value")
    assert told["self.x = x"].fix == "before  self.x = x\nafter   self.x.copy_(x), ahead of self.graph.replay()"
    assert told.keys() == {"self.model.eval()", "self.x = x", "p.data = e", "p.data = old"}


RELOADED = """
class Server:
    def __init__(self, model):
        self.model, self.x, self.graph = model, torch.zeros(8, 4, device=device), cuda.CUDAGraph()
        with torch.no_grad():
            self.model(self.x)
            with cuda.graph(self.graph):
                self.out = self.model(self.x)
    def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
    def reload(self, state):
        model = nn.Linear(4, 3).to(device)
        model.load_state_dict(state)
        LINE
def main():
    server, out = Server(nn.Linear(4, 3).to(device)), []
    for i in range(4):
        if i == 2:
            server.reload(nn.Linear(4, 3).to(device).state_dict())
        out.append(server.run(torch.ones(8, 4).to(device)))
    return torch.cat(out).cpu()
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [("self.model = model", ["self.model = model"]), ("self.model.load_state_dict(model.state_dict())", [])],
)
def test_a_load_that_copies_exchanges_no_memory(line: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN a server that fills a new model from a checkpoint, and takes it in place of its own, or copies it there
    names = run(RELOADED.replace("LINE", line), tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"])
    # THEN the new model's own load is no exchange: only the line is told that takes it
    assert [f.frame.text for f in found if f.frame is not None] == told
