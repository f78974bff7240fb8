"""Tensors that a rewritten step writes in place: lines elsewhere that give it another are told what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

AVERAGE = """\
class Average:
    def __init__(self, w):
        self.value = w.clone()
    def step(self, x):
        self.value = self.value * 0.9 + x * 0.1
        return self.value * 2
    def restart(self, w):
        self.value = w
class Other:
    def restart(self, w):
        self.value = w
average = Average(torch.ones(3, device=device))
args = (torch.randn(3, device=device),)
f = average.step
def loop(xs):
    for x in xs:
        average.value = x
        average.step(x)
"""


def test_lines_that_rebind_what_a_step_writes_in_place_are_told(tmp_path: Path) -> None:
    # GIVEN a state that becomes one tensor, and lines elsewhere that give it another WHEN it is rewritten
    found = rewritten(AVERAGE, tmp_path)
    # THEN the diff says what these write, by their own names, and nothing of another class's or of __init__
    told = [line for line in found.verified if "is one tensor, which" in line]
    assert [line.partition(", or capture")[0].partition("captured, line ")[2] for line in told] == [
        "17 writes `self.value.copy_(w)` for `self.value = w`",
        "26 writes `average.value.copy_(x)` for `average.value = x`",
    ]


MEMORY = """\
class Memory:
    def __init__(self):
        self.reset()
    def reset(self):
        self.rows, self.count = torch.zeros(99, 3, device=device), 0
        self.pos = 0
        self.last = torch.zeros(3, device=device)
    def step(self, x):
        self.rows[self.pos] = x
        self.pos += 1
        self.last = self.last * 0.5 + x
        return self.rows[: self.pos].sum(0) + self.last
    def sized(self):
        self.width = 3
memory = Memory()
args = (torch.randn(3, device=device),)
f = memory.step
"""


def test_a_method_that_makes_all_state_anew_is_told_what_to_write(tmp_path: Path) -> None:
    # GIVEN a state that one method makes, at first and between sequences WHEN its step is rewritten
    found = rewritten(MEMORY, tmp_path)
    # THEN each part of it that a graph reads in place is told, numbers as what fills a tensor, and nothing else
    told = [
        line.partition("captured, line ")[2].partition(",")[0] for line in found.verified if "is one tensor" in line
    ]
    assert told == [
        "14 writes `self.rows.copy_(torch.zeros(99",
        "15 writes `self.pos.fill_(0)` for `self.pos = 0`",
        "16 writes `self.last.copy_(torch.zeros(3",
    ]


METER = """\
class Meter:
    def __init__(self):
        self.clear()
    def clear(self):
        self.total, self.n = 0.0, 0
    def add(self, value, n=1):
        self.total += value * n
        self.n += n
class Fit:
    def __init__(self):
        self.meter, self.seen = Meter(), 0
        self.w = torch.ones(3, device=device)
    def begin(self):
        self.seen = 0
        self.w = torch.ones(3, device=device)
    def step(self, x):
        loss = (self.w * x).sum()
        self.w.mul_(0.9)
        self.meter.add(loss.item())
        self.seen += 1
        return loss * 2
fit = Fit()
args = (torch.randn(3, device=device),)
f = fit.step
"""


def test_numbers_that_are_counted_behind_a_launch_are_told_as_no_tensors(tmp_path: Path) -> None:
    # GIVEN a meter whose lines go behind the launch, a method that begins it again, and one that gives a tensor anew
    found = rewritten(METER, tmp_path)
    # WHEN its step is rewritten THEN a line is told for the tensor alone: the meter's numbers have no `fill_`
    assert found.complete
    assert "after_step" in found.diff
    told = [line.partition("` is one tensor")[0] for line in found.verified if "is one tensor" in line]
    assert told == ["`self.w"]


BEST = """\
class Least:
    def __init__(self):
        self.low = 9.0
    def step(this, x):
        cost = x.pow(2).sin().cos().tanh()
        this.low = min(this.low, float(cost.min()))
        return cost, this.low
class Greatest:
    def __init__(self):
        self.low = 0.0
    def step(this, x):
        this.low = max(this.low, float(x.max()))
        return x, this.low
    def state(this, x):
        this.average = x
class Smoothed:
    def __init__(self):
        self.average = torch.zeros(3, device=device)
    def step(this, x):
        this.average = this.average * 0.9 + x * 0.1
        return this.average * 2
    def restart(this, x):
        this.average = x
args = (torch.randn(3, device=device),)
f = {made}().step
"""


@pytest.mark.parametrize(("made", "lines"), [("Least", []), ("Smoothed", ["`this.average.copy_(x)`"])])
def test_a_line_of_another_class_is_not_told_by_whatever_name_methods_have_their_object(
    made: str, lines: list[str], tmp_path: Path
) -> None:
    # GIVEN methods that have their object by a name of their own, of one class and of another with that attribute, and
    # a number that is read behind the launch, or a state that becomes one tensor WHEN it is rewritten
    found = rewritten(BEST.format(made=made), tmp_path)
    # THEN a number that still gets another behind the launch is no tensor, and of the state its class's line is told
    told = [line for line in found.verified if "is one tensor, which" in line]
    assert [line.partition(" for ")[0].rpartition("writes ")[2] for line in told] == lines
    assert found.diff
