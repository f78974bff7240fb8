"""Checkpoints that give a module other memory while its graph is replayed: its parameters, and its buffers as well."""

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
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(()))
    def forward(self, x):
        return self.out(x) / self.scale
class Service:
    def __init__(self):
        self.net, self.x = Net().to(device).eval(), torch.zeros(2, 4, device=device)
        with torch.no_grad():
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x)
    def predict(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
    def reload(self, state):
        LOAD
def main():
    service, answers = Service(), []
    for i in range(3):
        if i:
            service.reload({k: v.detach() for k, v in Net().to(device).state_dict().items()})
        answers.append(service.predict(torch.full((2, 4), float(i), device=device)))
    return torch.stack(answers)
"""
ASSIGNED = "self.net.load_state_dict(state, assign=True)"
LINES = {
    ASSIGNED: [("parameter-rebound", ASSIGNED)],
    "self.net.scale = state['scale']": [("stale-input", "self.net.scale = state['scale']")],
    "self.net.load_state_dict(state)": [],
}


@pytest.mark.parametrize(
    "line", [ASSIGNED, *(pytest.param(each, marks=pytest.mark.sweep) for each in LINES if each != ASSIGNED)]
)
def test_a_call_that_exchanges_a_modules_memory_is_told_once(line: str, tmp_path: Path) -> None:
    # GIVEN a service that loads checkpoints between replays, of a module with a buffer
    names = load(PRELUDE + PROGRAM.replace("LOAD", line), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"]).failures
    # THEN the line that exchanges them is told alone, and none that reads the buffer; what copies is no problem
    assert [(f.code, f.frame.text if f.frame else "") for f in found] == LINES[line]
