"""Inputs of a graph that are copied to themselves: the line runs, and no call's own reaches the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
BEGIN = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

def warmed(work):
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work()
    cuda.current_stream().wait_stream(side)

def batches():
    return [(torch.rand(4, 6, device=device), torch.rand(4, 6, device=device)) for _ in range(4)]

@torch.no_grad()
def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 6).to(device)
    call = build(net)
    return [call(x, y).cpu() for x, y in batches()]
"""
KEYWORDS = """
def build(net):
    held = {}
    def record(x, **more):
        static = x.clone()
        warmed(lambda: net(static) + more["shift"])
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = net(static) + more["shift"]
        held["all"] = graph, static, more, out
    def call(x, **more):
        if not held:
            record(x, **more)
        graph, static, first, out = held["all"]
        static.copy_(x)
        FILL
        graph.replay()
        return out.clone()
    return lambda x, y: call(x, shift=y)
"""
ATTRIBUTE = """
class Runner:
    def __init__(self, net):
        self.net, self.graph = net, None
    def __call__(self, x, shift):
        if self.graph is None:
            self.x, self.shift = x.clone(), shift.clone()
            warmed(lambda: self.net(self.x) + self.shift)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.net(self.x) + self.shift
        self.x.copy_(x)
        FILL
        self.graph.replay()
        return self.out.clone()
build = Runner
"""


@pytest.mark.parametrize(
    ("program", "fill", "is_wrong"),
    [
        (KEYWORDS, 'more["shift"].copy_(more["shift"])', True),
        (KEYWORDS, 'first["shift"].copy_(first["shift"])', True),
        (KEYWORDS, 'first["shift"].copy_(more["shift"])', False),
        (ATTRIBUTE, "self.shift.copy_(self.shift)", True),
        (ATTRIBUTE, "shift.copy_(shift)", True),
        (ATTRIBUTE, "self.shift.copy_(shift)", False),
    ],
)
def test_what_is_copied_to_itself_is_not_filled(program: str, fill: str, is_wrong: bool, tmp_path: Path) -> None:
    # GIVEN a wrapper of which a line copies one of its two inputs: to itself, or to where the graph reads
    names = load(BEGIN + program.replace("FILL", fill), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN the input that the graph never sees is told, and nothing else
    assert [f.code for f in found.failures] == ["stale-input"] * is_wrong, found
