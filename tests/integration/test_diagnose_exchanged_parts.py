"""Parameters, buffers and modules that a step exchanges for others by a name that is a text, or computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import copy
import torch, paramgraph_kit as pgk
nn = torch.nn
device = pgk.device()
x = torch.ones(4, 3, device=device)
args = (x,)
"""
MODULE = """class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, device=device))
    def forward(self, x):
        LINES
f = Center()
"""
STEP = """class Step:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(device)
    def __call__(self, x):
        loss = self.net(x).square().mean()
        LINES
        return loss.detach()
f = Step()
"""
GRADS = "named = dict(self.net.named_parameters()); grads = torch.autograd.grad(loss, [*named.values()])"
SET = "setattr(self.net[int(mod)], attr, nn.Parameter(p.detach() - 0.1 * g))"
WRONG = {
    "a buffer is registered anew": (
        MODULE,
        ["out = x - self.mean", "self.register_buffer('mean', 0.9 * self.mean + x.mean(0))", "return out"],
        "stale-input",
        "self.register_buffer('mean', 0.9",
    ),
    "a buffer by a keyword": (
        MODULE,
        ["out = x - self.mean", "self.register_buffer(name='mean', tensor=self.mean + x.mean(0))", "return out"],
        "stale-input",
        "self.register_buffer(name=",
    ),
    "a buffer in the dictionary of buffers": (
        MODULE,
        ["out = x - self.mean", "parts = self._buffers", "parts['mean'] = self.mean + x.mean(0)", "return out"],
        "stale-input",
        "out = x - self.mean",  # no line names it: where it is read
    ),
    "parameters by names that are computed": (
        STEP,
        [GRADS, "for (n, p), g in zip(named.items(), grads):", "    mod, attr = n.split('.')", f"    {SET}"],
        "parameter-rebound",
        "setattr(self.net[int(mod)]",
    ),
    "a module of a module": (
        STEP,
        ["self.net[1] = copy.deepcopy(self.net[1])"],
        "parameter-rebound",
        "",
    ),
}
RIGHT = {
    "it is registered ahead of what reads it": (
        MODULE,
        ["self.register_buffer('mean', x.mean(0))", "return x - self.mean"],
    ),
    "it is written": (MODULE, ["out = x - self.mean", "self.mean.lerp_(x.mean(0), 0.1)", "return out"]),
    "it is the same one": (MODULE, ["self.register_buffer('mean', self.mean)", "return x - self.mean"]),
    "parameters are lent": (
        STEP,
        [
            "other = {n: p.detach() * 2 for n, p in self.net.named_parameters()}",
            "torch.func.functional_call(self.net, other, (x,))",
        ],
    ),
}


def _program(head: str, lines: list[str]) -> str:
    return HEAD + head.replace("LINES", "\n        ".join(lines))


@pytest.mark.parametrize("name", WRONG)
def test_what_a_step_exchanges_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step that reads a part of a module and gives the module another WHEN it is diagnosed THEN that is told
    head, lines, code, text = WRONG[name]
    names = load(_program(head, lines), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["args"])
    told = [f for f in diagnosis.failures if f.code == code and f.frame is not None and f.frame.text.startswith(text)]
    assert told, str(diagnosis)


@pytest.mark.parametrize("name", RIGHT)
def test_what_no_replay_misses_is_none(name: str, tmp_path: Path) -> None:
    # GIVEN one whose replays read what they make, or what is written in place WHEN diagnosed THEN nothing is told
    names = load(_program(*RIGHT[name]), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["args"])
    assert not diagnosis, str(diagnosis)
