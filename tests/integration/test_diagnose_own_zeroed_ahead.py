"""Gradients that a method of an object sets to None whose graph makes them: ahead of its capture alone, or later."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")
GRAPHED = """
class Backward:
    def __init__(self, net):
        self.net, self.x = net, torch.zeros(4, 3, device=device)
        self.prepare()
        net.zero_grad(set_to_none=True)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.work()
    def work(self):
        loss = self.net(self.x).square().mean()
        loss.backward()
        return loss.detach()
    def prepare(self):
        for _ in range(2):
            self.net.zero_grad(set_to_none=True)
            self.work()
    def clear(self):
        CLEAR
    def __call__(self, x):
        self.clear()
        self.x.copy_(x)
        self.graph.replay()
        return self.loss.clone()
torch.manual_seed(0)
backward = Backward(nn.Linear(3, 2).to(device))
args = (torch.randn(4, 3).to(device),)
"""


@pytest.mark.parametrize("clear", ["pass", "self.net.zero_grad()"])
def test_what_is_set_to_none_for_a_warm_up_alone_is_none_of_a_replays(clear: str, tmp_path: Path) -> None:
    # GIVEN an object that clears gradients in its warm-up, and perhaps in each call
    names = run(GRAPHED.replace("CLEAR", clear), tmp_path)
    # WHEN
    found = pgk.diagnose(names["backward"], *names["args"])
    # THEN only the line is told that runs between replays
    lines = [f.frame.function for f in found.failures if f.code == "gradients-rebound" and f.frame is not None]
    assert lines == ([] if clear == "pass" else ["clear"])
