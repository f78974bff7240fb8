"""Whose groups a line sets an entry of, as far as the names of a program tell."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path

import pytest
import torch

from paramgraph_kit.doctor.explain.syntax import here, tree_of
from paramgraph_kit.doctor.observe.whose_groups import Lines, may_schedule_its, may_set_its
from tests.programs.running import load

PROGRAM = """import itertools, torch
from torch.optim.lr_scheduler import StepLR
def made(**given): return torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1, **given)
class Both:
    def __init__(self, a, b):
        self.a, self.b = a, b
        self.every = [a, b]
        self.now = a
    def turn(self): self.now = self.b
    def step(self): pass
class Wrapped:
    def __init__(self, inner): self.inner, self.param_groups = inner, [{"params": [], "lr": 0.1}]
opt_a, opt_b = made(), made()
both, table, pair, late, cfg = Both(opt_a, opt_b), {"a": opt_a, "b": opt_b}, [opt_a, opt_b], [opt_b], {"lr": 1.0}
alias, sched_b, logs = opt_a, StepLR(opt_b, 1), {}
wrapped = Wrapped(opt_a)
late.append(opt_a)
def use(): opt_a.param_groups[0].update(cfg)
def main(given):
    for i in range(3):
        LINES
"""
OTHER = {
    "an entry": 'opt_b.param_groups[0]["lr"] = 1.0',
    "the last": 'opt_b.param_groups[-1]["lr"] = 1.0',
    "a loop": 'for group in opt_b.param_groups: group["lr"] *= 0.1',
    "of a loop": "for group in opt_a.param_groups: print(group)\n        "
    'for group in opt_b.param_groups: group["lr"] = 1.0',
    "counted": 'for k, group in enumerate(opt_b.param_groups): group["lr"] = 1.0 / k',
    "beside rates": 'for group, rate in zip(opt_b.param_groups, given): group["lr"] = rate',
    "an attribute": 'for group in both.b.param_groups: group["lr"] = 1.0',
    "a short name": 'groups = both.b.param_groups; groups[i]["lr"] = 1.0',
    "of a list": 'pair[1].param_groups[0]["lr"] = 1.0',
    "of a table": 'table["b"].param_groups[0]["lr"] = 1.0',
    "of a scheduler": 'sched_b.optimizer.param_groups[0]["lr"] = 1.0',
    "a loop of one": 'for opt in (opt_b,):\n            for group in opt.param_groups: group["lr"] = 1.0',
    "of what is stepped": 'given.step(); given.b.param_groups[0]["lr"] = 1.0',
    "of one that is made": "one = Both(opt_a, opt_b); one.step()\n        "
    'for group in one.b.param_groups: group["lr"] = 1.0',
    "a log": 'logs["lr"] = 0.1 * i',
}
ITS = {
    "an entry": 'opt_a.param_groups[0]["lr"] = 1.0',
    "another name": 'for group in alias.param_groups: group["lr"] = 1.0',
    "an attribute": 'for group in both.a.param_groups: group["lr"] = 1.0',
    "set again": 'for group in both.now.param_groups: group["lr"] = 1.0',
    "either": '(opt_a if i else opt_b).param_groups[0]["lr"] = 1.0',
    "a name for either": 'opt = opt_b\n        if i: opt = opt_a\n        opt.param_groups[0]["lr"] = 1.0',
    "of both": 'for opt in (opt_a, opt_b):\n            for group in opt.param_groups: group["lr"] = 1.0',
    "of a list": 'for opt in both.every:\n            for group in opt.param_groups: group["lr"] = 1.0',
    "added to": 'for opt in late:\n            for group in opt.param_groups: group["lr"] = 1.0',
    "an entry of a list": 'pair[i].param_groups[0]["lr"] = 1.0',
    "of a table": 'for opt in table.values():\n            for group in opt.param_groups: group["lr"] = 1.0',
    "together": 'for group in opt_b.param_groups + opt_a.param_groups: group["lr"] = 1.0',
    "chained": 'for group in itertools.chain(opt_b.param_groups, opt_a.param_groups): group["lr"] = 1.0',
    "a sorted list": 'for group in sorted(opt_a.param_groups, key=len): group["lr"] = 1.0',
    "unknown": 'given.param_groups[0]["lr"] = 1.0',
    "of a call": 'made().param_groups[0]["lr"] = 1.0',
    "of what is stepped": 'given.step(); given.a.param_groups[0]["lr"] = 1.0',
    "of a wrapper": 'wrapped.param_groups[0]["lr"] = 1.0',
    "handed on": 'cfg["lr"] = 0.1 * i',
    "a key of it": 'group = opt_a.param_groups[0]; group["lr"] = 1.0',
}
SCHEDULED = [("StepLR(opt_b, 1)", False), ("StepLR(optimizer=opt_a, step_size=1)", True), ("given(opt_b)", True)]


def lines_of(text: str, path: Path) -> tuple[list[ast.AST], Lines, torch.optim.Optimizer]:
    """The statements of ``main``, with what is known of them, and the optimizer that is asked for."""
    names = load(PROGRAM.replace("LINES", text), path)
    linecache.checkcache(str(path))
    tree = tree_of(str(path))
    assert tree is not None
    body = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")
    own = {key: value for key, value in names.items() if key not in ("given", "group", "opt", "groups", "i")}
    lines = Lines(str(path), body, own, function=names["both"].step)
    return [n for s in body.body for n in here(s)], lines, names["opt_a"]


def is_told(text: str, path: Path) -> bool:
    """Whether the line that sets a rate may set that of ``opt_a``."""
    nodes, lines, optimizer = lines_of(text, path)
    rates = [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    (rate,) = [n for n in rates if isinstance(n.slice, ast.Constant) and n.slice.value == "lr"]
    return may_set_its(rate, lines, optimizer)


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_what_is_set_of_another_optimizer_is_not_its(text: str, tmp_path: Path) -> None:
    # GIVEN a line that sets a rate of another optimizer WHEN asked whose THEN it is not this one's
    assert not is_told(text, tmp_path / "program.py")


@pytest.mark.parametrize("text", ITS.values(), ids=ITS)
def test_what_may_be_its_is_told(text: str, tmp_path: Path) -> None:
    # GIVEN a line that sets a rate of this one, of either, or of nobody knows whom WHEN asked THEN it may be this one's
    assert is_told(text, tmp_path / "program.py")


@pytest.mark.parametrize(("made", "told"), SCHEDULED)
def test_a_scheduler_is_of_the_optimizer_that_it_is_made_for(made: str, told: bool, tmp_path: Path) -> None:
    # GIVEN a scheduler that a function makes WHEN asked whose it is THEN it is that of what it is given, if that tells
    nodes, lines, optimizer = lines_of(f"schedule = {made}; schedule.step()", tmp_path / "program.py")
    (step,) = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == "step"]
    assert may_schedule_its(step.value, lines, optimizer) is told
