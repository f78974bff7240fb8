"""Attributes that several methods of a step exchange, read by a line that sets none: each of them writes in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")
FILTER = """
def flow(x):
    return x + 0.1 * torch.sin(x)
class Filter:
    def __init__(self):
        torch.manual_seed(1)
        self.ens = torch.randn(8, 4).to(device)
    def reset(self):
        self.ens = torch.zeros(8, 4, device=device)
    def forecast(self):
        for _ in range(2):
            self.ens = flow(self.ens)
    def analyse(self, y):
        mean = self.ens.mean(0)
        self.ens = mean + (self.ens - mean) * 0.9 + y
        return y - mean
    def f(self, y):
        self.forecast()
        innov = self.analyse(y)
        return self.ens.mean(0), innov
model = Filter()
f, args = model.f, (torch.ones(4, device=device),)
"""
KEPT = """
def flow(x):
    return x + 0.1 * torch.sin(x)
class Filter:
    def __init__(self):
        torch.manual_seed(1)
        self.ens = torch.randn(8, 4).to(device)
    def forecast(self):
        old = self.ens
        self.ens = flow(self.ens)
        return self.ens - old
    def f(self, y):
        change = self.forecast()
        self.ens = self.ens + y
        return self.ens.mean(0) + change.sum()
model = Filter()
f, args = model.f, (torch.ones(4, device=device),)
"""


def test_each_line_of_a_step_that_exchanges_it_writes_in_place(tmp_path: Path) -> None:
    # GIVEN an ensemble that two methods of a step give another tensor, and a third one that no step calls
    # WHEN it is rewritten, and captured over ten other steps
    fix = rewritten(FILTER, tmp_path)
    # THEN both write into the tensor that the graph reads, and the third one stays
    assert fix.complete, fix
    assert "self.ens.copy_(flow(self.ens))" in lines_of(fix)
    assert "self.ens.copy_(mean + (self.ens - mean) * 0.9 + y)" in lines_of(fix)
    assert not any("torch.zeros" in line for line in lines_of(fix))


def test_what_is_read_of_the_tensor_of_before_is_never_overwritten_unseen(tmp_path: Path) -> None:
    # GIVEN a method that still reads the tensor of before once it has set another one
    # WHEN it is rewritten, and what is said to be whole captured over ten other steps
    fix = rewritten(KEPT, tmp_path)
    # THEN nothing is said to be right that overwrites it
    assert not fix.complete or "self.ens.copy_(flow(self.ens))" not in lines_of(fix)


def test_the_words_name_all_of_the_lines(tmp_path: Path) -> None:
    # GIVEN the same step WHEN it is only asked what is wrong THEN the words have both lines: one alone would be wrong
    names = run(FILTER, tmp_path)
    (failure,) = pgk.diagnose(names["f"], *names["args"]).failures
    assert failure.fix.count("self.ens.copy_(") == 2, failure.fix


SEVERAL = """
class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(4, 4)
    def forward(self, x, h, c):
        h, c = self.cell(x, (h, c))
        return h, c
class Stream:
    def __init__(self):
        self.net = Cell().to(device)
        self.h, self.c = torch.zeros(1, 4, device=device), torch.zeros(1, 4, device=device)
    @torch.no_grad()
    def f(self, x):
        h, c = self.net(x, self.h, self.c)
        self.h = h
        self.c = c
        return h.sum()
f, args = Stream().f, (torch.ones(1, 4, device=device),)
"""


def test_a_line_that_reads_several_of_them_is_told_with_the_lines_of_all(tmp_path: Path) -> None:
    # GIVEN a line that reads two states, which two other lines exchange
    names = load(PRELUDE + SEVERAL, tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN the one problem of that line has the words for both
    told = [f for f in found.failures if f.code == "stale-input"]
    assert len(told) == 1
    assert all(words in told[0].fix for words in ("`self.h.copy_(h)`", "`self.c.copy_(c)`")), told[0].fix
