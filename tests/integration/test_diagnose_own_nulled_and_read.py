"""Gradients that a graph makes and steps with, set to None in a loop around it: told where a line reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")
TRAINER = """
class Trainer:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
        self.x, self.graph = torch.zeros(4, 3, device=device), cuda.CUDAGraph()
        for _ in range(2):
            self.opt.zero_grad()
            self.train()
        self.opt.zero_grad()
        with cuda.graph(self.graph):
            self.loss = self.train()
    def train(self):
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.opt.step()
        return loss
    def clear(self):  # nobody calls it
        self.opt.zero_grad()
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.loss.clone()
def norm(net):
    return [p.grad.norm().item() for p in net.parameters() if p.grad is not None]
MAKES
def main():
    HERE
    seen = []
    for i in range(3):
        CLEAR
        loss = trainer.step(torch.full((4, 3), 1.0 + i, device=device))
        LOG
    return seen
args = (torch.ones(4, 3, device=device),)
"""
MADE = "torch.manual_seed(0)\ntrainer = Trainer(nn.Linear(3, 2).to(device))\nstep = trainer.step"
WRONG = {
    "an optimizer": ("trainer.opt.zero_grad()", "seen += norm(trainer.net)"),
    "a module": (
        "trainer.net.zero_grad(set_to_none=True)",
        "seen.append(nn.utils.clip_grad_norm_(trainer.net.parameters(), 9.0))",
    ),
    "each": ("for p in trainer.net.parameters(): p.grad = None", "seen += norm(trainer.net)"),
}
RIGHT = {
    "zeroed in place": ("trainer.opt.zero_grad(set_to_none=False)", "seen += norm(trainer.net)"),
    "asked whether there is one": (
        "trainer.opt.zero_grad()",
        "seen.append([p.grad is None for p in trainer.net.parameters()])",
    ),
    "never cleared": ("pass", "seen += norm(trainer.net)"),
    "another one's": ("other.zero_grad()", "seen += norm(trainer.net)"),
}
OTHER = "\nother = nn.Linear(2, 2).to(device)"


def _told(clear: str, log: str, tmp_path: Path, asked: str, *, here: bool = False) -> list[str]:
    text = TRAINER.replace("CLEAR", clear).replace("LOG", log)
    made = MADE.replace("\n", "\n    ").partition("\n    step")[0]
    text = text.replace("MAKES", "" if here else MADE + OTHER).replace("HERE", made if here else "pass")
    names = run(text, tmp_path)
    found = pgk.diagnose(names[asked], *(names["args"] if asked == "step" else ()))
    return [f.fix.partition("after ")[2].strip() for f in found.failures if f.fix is not None]


@pytest.mark.parametrize("asked", ["step", pytest.param("main", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sweep if i else (), id=n) for i, n in enumerate(WRONG)]
)
def test_what_logs_a_gradient_that_is_none_by_then_is_told(name: str, asked: str, tmp_path: Path) -> None:
    # GIVEN a loop that sets gradients to None, around a graph that makes them and steps, and a line that logs them
    clear, log = WRONG[name]
    # WHEN the step is diagnosed alone, or the function with the loop
    told = _told(clear, log, tmp_path, asked)
    # THEN the line that sets them to None is told, in place
    zeroed = clear.replace("set_to_none=True", "").replace("()", "(set_to_none=False)")
    assert told == ["p.grad.zero_()" if "None" in clear and "zero_grad" not in clear else zeroed]


@pytest.mark.sweep
def test_the_same_where_the_function_with_the_loop_has_the_object(tmp_path: Path) -> None:
    # GIVEN a function that makes the object itself
    clear, log = WRONG["an optimizer"]
    # WHEN
    told = _told(clear, log, tmp_path, "main", here=True)
    # THEN
    assert told == ["trainer.opt.zero_grad(set_to_none=False)"]


@pytest.mark.parametrize("asked", ["step", pytest.param("main", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sweep if i else (), id=n) for i, n in enumerate(RIGHT)]
)
def test_what_nobody_misses_is_none(name: str, asked: str, tmp_path: Path) -> None:
    # GIVEN one that zeroes in place, reads no gradient, or clears those of others
    # WHEN
    told = _told(*RIGHT[name], tmp_path, asked)
    # THEN
    assert told == []
