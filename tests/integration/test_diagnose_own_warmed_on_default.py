"""Programs that capture for themselves and warm up on the default stream: a gradient accumulates there for good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a capture that fails is a simulated one")

TRAINER = """
cuda = pgk.cuda
class Trainer:
    def __init__(self):
        self.net, self.graph = nn.Linear(4, 2).to(device), None
        self.static = torch.zeros(3, 4, device=device)
    def update(self):
        self.net.zero_grad(set_to_none=True)
        loss = self.net(self.static).pow(2).mean()
        loss.backward()
        return loss
    def capture(self):
        WARM
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.update()
    def step(self, x):
        if self.graph is None:
            self.capture()
        self.static.copy_(x)
        self.graph.replay()
        return self.out.detach().clone()
trainer = Trainer()
def loop():
    for _ in range(3):
        trainer.step(torch.randn(3, 4, device=device))
def main():
    net = nn.Linear(4, 2).to(device)
    def update():
        net.zero_grad(set_to_none=True)
        loss = net(torch.ones(3, 4, device=device)).pow(2).mean()
        loss.backward()
        return loss
    WARMED
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = update()
    graph.replay()
    return out
args = {"trainer.step": (torch.randn(3, 4, device=device),)}.get(NAME, ())
f = eval(NAME)
"""
KEPT = "for _ in range(3): loss = {}update()"
ASIDE = """side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3): loss = {}update()
    cuda.current_stream().wait_stream(side)"""
LET_GO = "for _ in range(3): {}update()"


def told(name: str, warm: str, folder: Path) -> list[str]:
    """The codes of what is told of one of the functions of a program that warms up so."""
    text = TRAINER.replace("WARMED", warm.format("")).replace("NAME", repr(name))
    names = run(text.replace("WARM", warm.format("self.").replace("\n", "\n    ")), folder)
    return [failure.code for failure in pgk.diagnose(names["f"], *names["args"])]


@pytest.mark.parametrize("name", ["trainer.step", "loop", "main"])
def test_a_warm_up_whose_graph_of_autograd_lives_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a warm-up on the default stream whose loss is still there when the capture begins WHEN asked
    # THEN its capture, which fails on the user's own stream, is told, whatever stream a diagnosis calls it on
    assert told(name, KEPT, tmp_path) == ["legacy-stream"]


@pytest.mark.parametrize("name", ["trainer.step", "loop", "main"])
@pytest.mark.parametrize("warm", [ASIDE, LET_GO], ids=["aside", "let go"])
def test_a_warm_up_aside_or_let_go_is_right(name: str, warm: str, tmp_path: Path) -> None:
    # GIVEN one on another stream, or with nothing left of it WHEN asked THEN there is no problem
    assert told(name, warm, tmp_path) == []
