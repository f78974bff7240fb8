"""Numbers that a graph reads, and that a step gives another value in a branch which no examined call has taken."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FINDER = """
class Finder:
    def __init__(self):
        self.x, self.out = torch.zeros(3, device=device), torch.zeros(3, device=device)
        self.w = nn.Parameter(torch.ones(3, device=device))
        self.opt = torch.optim.SGD([self.w], lr=0.1)
        self.plan = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.5)
        self.rate, self.calls, self.bad, self.best, self.seen, self.quiet = 0.1, 0, 0, 1e9, [], False
        self.config, self.graph = {"rate": 1.0}, cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.w.grad = self.x.clone()
            self.opt.step()
            self.out.copy_(self.w * self.rate * self.config["rate"])
    def halve(self):
        self.rate *= 0.5
    def step(self, x, epoch):
        self.x.copy_(x)
        self.graph.replay()
        self.calls += 1
        loss = self.out.sum().item()
        AFTER
        return self.out.clone()
torch.manual_seed(0)
finder = Finder()
args = (torch.rand(3, device=device), 1)
"""
WRONG = {
    "a count": ("if self.bad > 7:\n    self.rate *= 0.5", "self.rate *= 0.5"),
    "a method": ("if self.calls % 50 == 0:\n    self.halve()", "self.rate *= 0.5"),
    "an entry": ("gone = loss > 50\nif gone:\n    self.config['rate'] = 0.5", "self.config['rate'] = 0.5"),
    "of groups": (
        "if self.calls % 50 == 0:\n    for g in self.opt.param_groups:\n        g['lr'] *= 0.5",
        "g['lr'] *= 0.5",
    ),
    "a schedule": ("if self.calls % 50 == 0:\n    self.plan.step()", "self.plan.step()"),
    "an argument": ("if epoch > 10:\n    self.rate = 0.01", "self.rate = 0.01"),
    "one expression": (
        "self.rate = 0.01 if self.calls > 100 else 0.1",
        "self.rate = 0.01 if self.calls > 100 else 0.1",
    ),
    "a slow count": ("self.rate = 0.1 + self.calls // 100", "self.rate = 0.1 + self.calls // 100"),
}
RIGHT = {
    "the same number": "if self.calls % 50 == 0:\n    self.rate = 0.1",
    "what no graph reads": "if self.bad > 7:\n    self.best *= 0.5",
    "a flag that nothing sets": "if self.quiet:\n    self.rate *= 0.5",
    "a list": "if self.calls % 50 == 0:\n    self.seen.append(loss)",
    "captured again": (
        "if self.calls % 50 == 0:\n    self.rate *= 0.5\n    self.graph = cuda.CUDAGraph()\n"
        "    with cuda.graph(self.graph):\n        self.out.copy_(self.w * self.rate * self.config['rate'])"
    ),
}
MODES = """
class Finder:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).to(device)
        self.first, self.opt = self.net[0], torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.plan, self.x, self.calls = SimpleNamespace(rate=0.5), torch.zeros(3, device=device), 0
        with cuda.stream(cuda.Stream()):
            self.train()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.train()
    def train(self):
        self.opt.zero_grad()
        loss = self.net(self.x).square().sum() * self.plan.rate
        loss.backward()
        self.opt.step()
        return loss.detach()
    def look(self):
        self.net.eval()
        self.net(self.x)
        self.net.train()
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.calls += 1
        plan = self.plan
        if self.calls == 50:
            CHANGE
        return self.loss.clone()
finder, args = Finder(), (torch.rand(3, device=device),)
"""
LAZY = """
class Finder:
    def __init__(self):
        self.x, self.rate, self.calls, self.graph = torch.zeros(3, device=device), 0.1, 0, None
        self.table = torch.ones(3, device=device)
        self.scaled = partial(torch.mul, self.table)
    def halve(self):
        CHANGE
    def step(self, x):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.scaled(self.x) * self.rate
        self.x.copy_(x)
        self.graph.replay()
        self.calls += 1
        if self.calls >= 50:
            self.halve()
            self.calls = 0
        return self.out.clone()
finder, args = Finder(), (torch.rand(3, device=device),)
"""
FIRST = ("a count", "the same number")


def _each(names: Iterable[str]) -> list[object]:
    return [pytest.param(n, marks=() if n in FIRST else pytest.mark.sweep, id=n.replace(" ", "-")) for n in names]


def _told(after: str, tmp_path: Path) -> list[tuple[str, str]]:
    counted = "if loss < self.best:\n    self.best = loss\nelse:\n    self.bad += 1\n"
    names = run(FINDER.replace("AFTER", (counted + after).replace("\n", "\n        ")), tmp_path)
    found = pgk.diagnose(names["finder"].step, *names["args"])
    return [(f.frame.text, f.message) for f in found.failures if f.frame is not None]


@pytest.mark.parametrize("name", _each(WRONG))
def test_what_a_later_call_gives_another_value_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step that gives a number another value which its graph reads, where a later call comes to it
    after, line = WRONG[name]
    # WHEN it is diagnosed alone
    told = _told(after, tmp_path)
    # THEN the line is told, and that no call came there by itself
    assert [text for text, _ in told] == [line]
    assert "a later one may" in told[0][1]


@pytest.mark.parametrize("name", _each(RIGHT))
def test_what_the_graph_does_not_miss_is_none(name: str, tmp_path: Path) -> None:
    # GIVEN one that gives the same, gives what no graph reads, captures again, or whose branch nothing decides
    # WHEN it is diagnosed alone
    # THEN nothing is told
    assert _told(RIGHT[name], tmp_path) == []


@pytest.mark.sweep
def test_the_other_parts_of_a_line_stay(tmp_path: Path) -> None:
    # GIVEN a line that gives two names a value, of which the graph reads one
    names = run(FINDER.replace("AFTER", "self.rate, self.bad = self.rate * 0.5, 0"), tmp_path)
    # WHEN
    (failure,) = pgk.diagnose(names["finder"].step, *names["args"]).failures
    # THEN its words have both
    assert failure.fix is not None
    assert "self.rate.fill_(self.rate * 0.5); and `self.bad = 0` as it is" in failure.fix


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("self.rate *= 0.5", "here: this line as it is, which writes there"),
        pytest.param("self.table = self.table * 2", "self.table.copy_(self.table * 2)", marks=pytest.mark.sweep),
        pytest.param("self.table.mul_(2)", "", marks=pytest.mark.sweep),
    ],
)
def test_what_captures_in_its_first_call_is_looked_at_as_well(change: str, words: str, tmp_path: Path) -> None:
    # GIVEN a step that captures when it is called first, also what a partial has bound, and changes something later
    names = run("from functools import partial\n" + LAZY.replace("CHANGE", change), tmp_path)
    # WHEN
    found = pgk.diagnose(names["finder"].step, *names["args"])
    # THEN the line is told, and what is written in place is none
    fixes = [f.fix.partition("after ")[2] for f in found.failures if f.fix is not None]
    assert len(fixes) == bool(words)
    assert all(fix.endswith(words) for fix in fixes)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "is_wrong"),
    [
        ("self.net.eval()", True),
        ("self.first.requires_grad_(False)", True),
        ("plan.rate /= 2", True),
        ("self.net[0].requires_grad_(False)", True),
        ("self.net[0].weight.requires_grad = False", True),
        ("for p in self.net[0].parameters():\n    p.requires_grad = False", True),
        ("for name, p in self.net.named_parameters():\n    p.requires_grad_(False)", True),
        ("for m in self.net:\n    if isinstance(m, nn.Dropout):\n        m.eval()", True),
        ("for m in self.net.modules():\n    if isinstance(m, nn.Dropout):\n        m.p = 0.1", True),
        ("for m in self.net.modules():\n    if isinstance(m, nn.LayerNorm):\n        m.eval()", False),
        ("for p in self.net[0].parameters():\n    p.requires_grad_(True)", False),
        ("self.look()", False),
        ("self.net.train()", False),
        ("self.net.requires_grad_(True)", False),
    ],
)
def test_modes_flags_and_what_a_variable_stands_for_are_looked_at(change: str, is_wrong: bool, tmp_path: Path) -> None:
    # GIVEN a step that, in a later call, switches a mode, or a flag, or sets a part of what a variable stands for
    names = run(
        "from types import SimpleNamespace\n" + MODES.replace("CHANGE", change.replace("\n", "\n" + " " * 12)), tmp_path
    )
    # WHEN
    found = pgk.diagnose(names["finder"].step, *names["args"])
    # THEN its line is told, but not where the mode is put back, or is what it was
    line = change.splitlines()[-1].strip()
    assert [f.frame.text.strip() for f in found.failures if f.frame is not None] == ([line] if is_wrong else [])


@pytest.mark.sweep
def test_a_graph_that_keeps_the_loss_of_what_is_frozen_later_is_looked_at_as_well(tmp_path: Path) -> None:
    # GIVEN a step whose loss, which it keeps, holds its graph of gradients, and that freezes a part later
    text = MODES.replace("loss.detach()", "loss").replace("self.loss.clone()", "self.loss.item()")
    names = run(
        "from types import SimpleNamespace\n" + text.replace("CHANGE", "self.net[0].requires_grad_(False)"), tmp_path
    )
    # WHEN
    found = pgk.diagnose(names["finder"].step, *names["args"])
    # THEN the line is told: a weight that learns no more is no error of the question's
    assert [f.frame.text for f in found.failures if f.frame is not None] == ["self.net[0].requires_grad_(False)"]
