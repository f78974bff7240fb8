"""What a first call makes in torch's own objects stays where the graph that it captures reads it."""

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
SCALED = """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.graph = nn.Linear(4, 1).to(device), None
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=64.0)
        self.x = torch.zeros(3, 4, device=device)
    def body(self):
        loss = self.net(self.x).pow(2).mean()
        self.scaler.scale(loss).backward()
        return loss
    def __call__(self, x):
        self.x.copy_(x)
        if self.graph is None:
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                self.body()
            cuda.current_stream().wait_stream(side)
            self.opt.zero_grad(set_to_none=True)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.body()
        self.graph.replay()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad(set_to_none=False)
        return self.loss.detach().clone()
step = Trainer()
"""
BUFFERED = """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.graph = nn.Linear(4, 4), None
        INIT
    @torch.no_grad()
    def body(self):
        MAKE
        return self.linear(self.x) * self.mask
    def forward(self, x):
        if self.graph is None:
            self.x = x.clone()
            self.body()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.body()
        self.x.copy_(x)
        AHEAD
        self.graph.replay()
        return self.out.clone()
step = Masked().to(device)
"""
WAYS = {
    "scaler": SCALED,
    "none first": BUFFERED.replace("INIT", "self.register_buffer('mask', None)").replace(
        "MAKE", "if self.mask is None: self.mask = torch.arange(4.0, device=device)"
    ),
    "registered late": BUFFERED.replace("INIT", "pass").replace(
        "MAKE", "hasattr(self, 'mask') or self.register_buffer('mask', torch.arange(4.0, device=device))"
    ),
}


def told(program: str, tmp_path: Path) -> tuple[list[str], list[object]]:
    """What is told of such a step, and what torch's objects have behind that."""
    names = load(PRELUDE + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["step"], torch.randn(3, 4).to(pgk.device())).failures
    step = names["step"]
    return [f.code for f in found], [
        getattr(step, "mask", None),
        getattr(getattr(step, "scaler", None), "_scale", None),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_first_stays_for_the_graph_that_reads_it(way: str, tmp_path: Path) -> None:
    # GIVEN a step that captures in its first call, in which torch's own object makes what the graph reads
    # WHEN it is diagnosed
    codes, left = told(WAYS[way].replace("AHEAD", "pass"), tmp_path)
    # THEN nothing is told, and all is put back in the end
    assert not codes
    assert left == [None, None]


@pytest.mark.parametrize("way", ["none first", "registered late"])
def test_what_the_program_itself_lets_go_is_told(way: str, tmp_path: Path) -> None:
    # GIVEN the same, whose calls make anew what the graph reads
    program = WAYS[way].replace("AHEAD", "self.mask = torch.arange(4.0, device=device)")
    # WHEN it is diagnosed
    codes, _ = told(program, tmp_path)
    # THEN that is told
    assert codes
