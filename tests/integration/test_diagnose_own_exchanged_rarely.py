"""Steps around a graph that exchange now and then what it reads: in no call of a diagnosis, but in a later one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
RUNNER = """
import copy
class Runner:
    def __init__(self):
        self.net, self.target = (nn.Linear(4, 4).to(device).requires_grad_(False) for _ in range(2))
        self.x, self.gate = torch.zeros(2, 4, device=device), torch.full((1,), 0.5, device=device)
        self.calls, self.stale, self.training, self.graph = 0, False, False, None
        self.capture()
    def run(self):
        return (self.net(self.x) - self.target(self.x)) * self.gate
    def capture(self):
        self.run()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.run()
    def step(self, x):
        if self.stale:
            self.capture()
            self.stale = False
        self.x.copy_(x)
        self.graph.replay()
        self.calls += 1
        EXCHANGE
        return self.y.clone()
runner, x = Runner(), torch.rand(2, 4, device=device)
"""
RARELY = {
    "if self.calls % 100 == 0:\n    self.target = copy.deepcopy(self.net)": (
        "self.target.load_state_dict(self.net.state_dict())"
    ),
    "if float(self.y.mean()) > 1e6:\n    self.gate = self.gate * 0.9": "self.gate.copy_(self.gate * 0.9)",
    "if (self.y.mean() > 1e6).item():\n    pass\nelif self.calls > 50:\n    self.gate = torch.ones_like(self.gate)": (
        "self.gate.copy_(torch.ones_like(self.gate))"
    ),
}
RIGHT = (
    "if self.calls % 100 == 0:\n    self.target.load_state_dict(self.net.state_dict())",
    "if self.calls % 100 == 0:\n    self.target = copy.deepcopy(self.net)\n    self.capture()",
    "if self.calls % 100 == 0:\n    self.target, self.stale = copy.deepcopy(self.net), True",
    "if self.calls % 100 == 0:\n    self.target = copy.deepcopy(self.net)\n    self.stale = True",
    "if self.calls % 100 == 0:\n    self.gate.mul_(0.9)",
    "if self.calls % 100 == 0:\n    self.best = self.gate * 0.9",
    "if self.training:\n    self.gate = self.gate * 0.9",
)


def _found(exchange: str, tmp_path: Path) -> list[str]:
    lines = exchange.replace("\n", "\n        ")
    names = load(PRELUDE + RUNNER.replace("EXCHANGE", lines), tmp_path / "program.py")
    return [f.fix.partition("after ")[2].strip() for f in pgk.diagnose(names["runner"].step, names["x"]).failures]


@pytest.mark.parametrize("exchange", RARELY)
def test_what_a_later_call_exchanges_is_told(exchange: str, tmp_path: Path) -> None:
    # GIVEN a step that exchanges a tensor, or a module, that its graph reads, where a counter or a result says so
    # WHEN it is diagnosed
    # THEN the line is told, with what writes into the one that is there
    assert _found(exchange, tmp_path) == [RARELY[exchange]]


@pytest.mark.parametrize("exchange", RIGHT)
def test_what_is_written_in_place_or_captured_again_is_none(exchange: str, tmp_path: Path) -> None:
    # GIVEN one that writes in place, captures again, or has a branch that nothing of it decides
    # WHEN it is diagnosed
    # THEN nothing is told
    assert not _found(exchange, tmp_path)
