"""Warm-ups that stand in another function than the capture: beside it, around it, or in a method of its own."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
BEGIN = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
    rate = torch.tensor(0.01, device=device)
    return model, torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)

def feed(static, graph):
    for _ in range(3):
        static.copy_(torch.rand(8, 4, device=device))
        graph.replay()
"""
BESIDE = """
def main():
    model, optimizer = make()
    static = torch.zeros(8, 4, device=device)
    def rehearse(x, times=3):
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(times):
                optimizer.zero_grad(set_to_none=True)
                model(x).square().mean().backward()
                STEP
        cuda.current_stream().wait_stream(side)
    kept = [p.detach().clone() for p in model.parameters()]
    rehearse(static)
    BACK
    optimizer.zero_grad(set_to_none=True)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        model(static).square().mean().backward()
        optimizer.step()
    feed(static, g)
    return [p.detach().cpu() for p in model.parameters()]
"""
METHODS = """
class Fit:
    def __init__(self):
        self.net, self.opt = model, optimizer = make()
        self.x = torch.zeros(8, 4, device=device)
        kept = [p.detach().clone() for p in model.parameters()]
        self.rehearse()
        BACK
        self.record()

    def once(self, steps=True):
        self.opt.zero_grad(set_to_none=True)
        self.net(self.x).square().mean().backward()
        if steps:
            self.opt.step()

    def rehearse(self):
        optimizer, side = self.opt, cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                self.once(steps=False)
                STEP
        cuda.current_stream().wait_stream(side)

    def record(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.once()

def main():
    fit = Fit()
    feed(fit.x, fit.graph)
    return [p.detach().cpu() for p in fit.net.parameters()]
"""
AROUND = """
def main():
    model, optimizer = make()
    static = torch.zeros(8, 4, device=device)
    def grads():
        optimizer.zero_grad(set_to_none=True)
        model(static).square().mean().backward()
    def record():
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            grads()
            optimizer.step()
        return g
    kept = [p.detach().clone() for p in model.parameters()]
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            grads()
            STEP
    cuda.current_stream().wait_stream(side)
    BACK
    feed(static, record())
    return [p.detach().cpu() for p in model.parameters()]
"""
STEP = "optimizer.step()"
BACK = """with torch.no_grad():
    [p.copy_(old) for p, old in zip(model.parameters(), kept)]
    [v.zero_() for state in optimizer.state.values() for v in state.values()]"""


def _written(program: str, step: str, back: str) -> str:
    lines = (indent(back, line[: -len("BACK")]) if line.endswith(" BACK") else line for line in program.splitlines())
    return BEGIN + "\n".join(lines).replace("STEP", step)


@pytest.mark.parametrize("program", [BESIDE, METHODS, AROUND])
@pytest.mark.parametrize(
    ("step", "back", "noted"),
    [("optimizer.step()", "pass", True), ("optimizer.step()", BACK, False), ("pass", "pass", False)],
)
def test_what_a_warm_up_of_another_function_moves_is_noted(
    program: str, step: str, back: str, noted: bool, tmp_path: Path
) -> None:
    # GIVEN a program whose warm-up is not in the function that captures, trains or not, and may be put back
    names = load(_written(program, step, back), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN weights and the optimizer's state that it has moved for good are noted
    said = " ".join(str(found).split())
    assert ("'s weights and `" in said and "'s state, and nothing puts that back" in said) == noted, found
    assert noted or "has moved" not in said, found


FIRST_STEPS = """
class Fit:
    def __init__(self):
        self.net, self.opt = make()
        self.x, self.graph, self.steps = torch.zeros(8, 4, device=device), None, 0

    def once(self):
        self.opt.zero_grad(set_to_none=True)
        self.net(self.x).square().mean().backward()
        self.opt.step()

    def record(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.once()

    def step(self, x):
        self.x.copy_(x)
        self.steps += 1
        if self.steps <= 3:
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                self.once()
            cuda.current_stream().wait_stream(side)
            return
        if self.graph is None:
            self.record()
        self.graph.replay()

def main():
    fit = Fit()
    for _ in range(6):
        fit.step(torch.rand(8, 4, device=device))
    return [p.detach().cpu() for p in fit.net.parameters()]
"""


def test_first_steps_on_a_stream_of_their_own_are_no_warm_up(tmp_path: Path) -> None:
    # GIVEN a program that takes its first steps on another stream, and captures in a method of its own then
    names = load(BEGIN + FIRST_STEPS, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN nothing is said to be moved
    assert not found.failures
    assert "has moved" not in str(found), found
