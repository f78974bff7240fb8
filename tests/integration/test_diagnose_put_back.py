"""Averages of weights that a loop puts in and takes out again, and other ways to write what a loop sets."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import dataclasses
import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
@dataclasses.dataclass(frozen=True)
class Config:
    beta: float = 0.5
class Average:
    def __init__(self, net):
        self.net, self.backup = net, {}
        self.shadow = {name: p.detach().clone() for name, p in net.named_parameters()}
    def put(self):
        for name, param in self.net.named_parameters():
            if param.requires_grad:
                self.backup[name] = param.dataCOPY
                param.data = self.shadow[name]
    def restore(self):
        for name, p in self.net.named_parameters():
            if p.requires_grad:
                assert name in self.backup
                p.data = self.backup[name]
        self.backup = {}
def set_requires_grad(nets, flag):
    for net in nets if isinstance(nets, (list, tuple)) else [nets]:
        for p in net.parameters():
            p.requires_grad = flag
class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)).to(device)
        self.net[1].bias.requires_grad_(False)
        self.cfg, self.table, self.betas = Config(), {"beta": 0.3}, [0.1, 0.2]
        self.opt, self.average = torch.optim.SGD(self.net.parameters(), lr=0.1), AVERAGE
    def step(self, x):
        loss = self.net(x).square().mean() * (self.cfg.beta + self.table["beta"] + self.betas[0])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
    def fit(self, rows):
        for k, x in enumerate(rows):
            self.step(x)
            INSIDE
f = Trainer().step
inputs = (torch.ones(2, 3, 4, 4, device=device),)
"""
AROUND = "self.average.put(); self.net(x); self.average.restore()"
WRONG = {
    "an average that is left": ("self.average.put()", "", ".data"),
    "a copy that is put in its place": (AROUND, ".clone()", ".data"),
    "one more put in": ("self.average.put(); self.average.restore(); self.average.put()", "", ".data"),
    "another order of dimensions": ("self.net.to(memory_format=torch.channels_last)", "", "self.net[0].weight.data"),
    "parameters of one of them, or some": ("set_requires_grad(self.net[0], k > 2)", "", "requires_grad"),
    "a frozen dataclass": ('object.__setattr__(self.cfg, "beta", 0.1 * k)', "", "self.cfg.beta"),
    "a dictionary with others": ('self.table |= {"beta": 0.1 * k}', "", "self.table['beta']"),
    "a group with others": ('for g in self.opt.param_groups: g |= {"lr": 0.1 / (k + 1)}', "", "lr of self.opt"),
    "other numbers of a list": ("self.betas[:] = [0.1 * k, 0.2]", "", "self.betas"),
    "another order of a list": ("self.betas.reverse()", "", "self.betas"),
}
RIGHT = {
    "an average that is taken out": AROUND,
    "twice": f"{AROUND}; {AROUND}",
    "an order that it has": "self.net.to(memory_format=torch.contiguous_format)",
    "put back": "set_requires_grad([self.net[0]], False); self.net(x); set_requires_grad(self.net[0], True)",
    "a list that grows": "self.betas.append(0.1 * k)",
    "an entry that nothing reads": 'self.table |= {"seen": k}; self.betas[1] = 0.1 * k',
}


def _program(inside: str, copy: str = "", average: str = "Average(self.net)") -> str:
    return PROGRAM.replace("INSIDE", inside).replace("COPY", copy).replace("AVERAGE", average)


@pytest.mark.parametrize("name", WRONG)
def test_what_a_loop_leaves_otherwise_is_told_however_it_is_written(name: str, tmp_path: Path) -> None:
    # GIVEN a step, and a loop that leaves something of it otherwise WHEN it is diagnosed THEN that is told
    inside, copy, what = WRONG[name]
    names = load(_program(inside, copy), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert any(f"{what} is set between calls, at" in f.message for f in diagnosis), str(diagnosis)


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_loop_puts_back_is_not_told_however_it_is_written(name: str, tmp_path: Path) -> None:
    # GIVEN the same with a loop that puts it back WHEN it is diagnosed THEN there is no problem
    names = load(_program(RIGHT[name]), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)


def test_memory_that_an_object_of_the_loop_alone_has_kept_is_put_back(tmp_path: Path) -> None:
    # GIVEN an average that only the loop makes
    text = _program(AROUND.replace("self.average", "average"), average="None")
    text = text.replace("    def fit(self, rows):\n", "    def fit(self, rows):\n        average = Average(self.net)\n")
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN there is no problem
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)


@pytest.mark.parametrize(
    "loop", ["trainer.fit(rows)", "for k, x in enumerate(rows): step(x); trainer.table['beta'] = k"]
)
def test_loops_around_the_method_that_a_function_only_calls_are_read(loop: str, tmp_path: Path) -> None:
    # GIVEN a function that hands on what it is given to a method, and a loop around either
    inside = "pass" if "beta" in loop else "self.table['beta'] = 0.1 * k"
    text = _program(inside).replace(
        "f = Trainer().step", "trainer = Trainer()\ndef step(x):\n    return trainer.step(x)\nf = step"
    )
    names = load(f"{text}def main(rows):\n    {loop}\n", tmp_path / "program.py")
    # WHEN the function is diagnosed THEN what the loop sets is told
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert any("self.table['beta'] is set between calls, at" in f.message for f in diagnosis), str(diagnosis)
