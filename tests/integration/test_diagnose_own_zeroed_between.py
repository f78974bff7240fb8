"""Gradients that several replays add to, and numbers that one call gives to a graph, and that a reset sets back."""

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
ADDED = """
class Accumulator:
    def __init__(self):
        self.net = nn.Linear(4, 2).to(device)
        self.opt, self.x = torch.optim.SGD(self.net.parameters(), lr=0.1), torch.ones(3, 4, device=device)
    def micro(self):
        self.net(self.x).sum().backward()
    def capture(self):
        s = cuda.Stream()
        s.wait_stream(cuda.current_stream())
        with cuda.stream(s):
            self.micro()
        cuda.current_stream().wait_stream(s)
        self.opt.zero_grad(set_to_none=False)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.micro()
    def update(self):
        self.opt.step()
        self.opt.zero_grad(ZERO)
def f():
    acc = Accumulator()
    acc.capture()
    for i in range(3):
        for k in range(2):
            acc.x.fill_(i + k)
            acc.graph.replay()
        acc.update()
    return [p.sum().item() for p in acc.net.parameters()]
args = ()
"""
GIVEN = """
def graphed(fn):
    store = {}
    def wrapper(*args):
        if not store:
            static = [a.clone() if torch.is_tensor(a) else a for a in args]
            fn(*static)
            cuda.synchronize()
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                store[0] = g, static, fn(*static)
            store[0] = g, static, store.get(0, (0, 0, None))[2]
        g, static, out = store[0]
        for s, a in zip(static, args):
            if torch.is_tensor(a):
                s.copy_(a)
        g.replay()
        return out.clone()
    return wrapper
@graphed
def move(x, dt, temperature):
    return x * (1 - dt) + temperature
def f():
    x = torch.ones(4, device=device)
    for i in range(4):
        x = move(x, GIVES)
    return x
args = ()
"""


@pytest.mark.parametrize("zero", ["", pytest.param("set_to_none=False", marks=pytest.mark.sweep)])
def test_gradients_that_replays_add_up_are_told_where_they_are_set_to_none(zero: str, tmp_path: Path) -> None:
    # GIVEN two replays for each step of an optimizer, and gradients ahead of the capture
    told = pgk.diagnose(run(ADDED.replace("ZERO", zero), tmp_path)["f"]).failures
    # WHEN THEN only what sets them to None is told: made anew in the graph, each replay would write over the last
    assert [f.code for f in told] == ([] if zero else ["gradients-rebound"])


def test_numbers_that_one_call_gives_have_tensors_together(tmp_path: Path) -> None:
    # GIVEN a decorator that copies tensors, and two numbers beside them
    told = pgk.diagnose(run(GIVEN.replace("GIVES", "0.1 * (1 + i), 1.0 / (1 + i)"), tmp_path)["f"]).failures
    # WHEN THEN
    (failure,) = told
    assert "torch.tensor(0.1 * (1 + i), device='sim'), torch.tensor(1.0 / (1 + i), device='sim'))" in failure.fix


@pytest.mark.sweep
def test_numbers_that_stay_are_no_problem(tmp_path: Path) -> None:
    # GIVEN the same with the same numbers each time
    # WHEN THEN
    assert not pgk.diagnose(run(GIVEN.replace("GIVES", "0.1, 1.0"), tmp_path)["f"]).failures
