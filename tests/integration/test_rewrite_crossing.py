"""Lines that go behind a launch never change places with lines that give what they read, however far away that is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

FLOW = """
class Flow:
    def __init__(self):
        self.state, self.width, self.cap, self.log = torch.ones(4, 4, device=device), 0.5, 10.0, []
    def limit(self):
        BOUND
    def move(self, x):
        rate = torch.tanh(self.state @ x)
        peak = rate.abs().max().item()
        MOVED
        self.limit()
        return rate * 2
f, args = Flow().move, (torch.eye(4, device=device),)
"""
# No trial shows a limit that the few steps of one do not reach.
BOUNDS = ("self.width = min(self.width, self.cap)", "if self.width > self.cap: self.width = self.cap")
MOVED = ("self.state.add_(rate, alpha=self.width * peak)", "self.log.append(peak * self.width)")
AROUND = """
width, log, args = 0.5, [], (torch.eye(4, device=device),)
def limit(cap):
    global width
    width = min(width, cap)
def scaled(peak):
    return peak * width
def f(x):
    rate = torch.tanh(x)
    log.append(scaled(rate.abs().max().item()))
    limit(10.0)
    return rate * 2
"""


@pytest.mark.parametrize("moved", MOVED)
@pytest.mark.parametrize("bound", BOUNDS)
def test_what_a_method_sets_is_set_behind_the_lines_that_read_it(tmp_path: Path, bound: str, moved: str) -> None:
    # GIVEN a line that must go behind the launch, and a method after it that sets what it reads
    said = str(rewritten(FLOW.replace("BOUND", bound).replace("MOVED", moved), tmp_path))
    # WHEN it is moved THEN the method's call goes with it
    assert f"         {moved}\n         self.limit()\n" in said.partition("def after_move")[2]


def test_what_functions_set_and_read_around_them_keeps_its_order(tmp_path: Path) -> None:
    # GIVEN the same of a global number, which one function reads and another one sets
    said = str(rewritten(AROUND, tmp_path))
    # WHEN it is moved THEN both are, in their order
    assert "     log.append(scaled(rate.abs().max().item()))\n     limit(10.0)\n" in said.partition("def after_f")[2]


def test_what_a_method_of_another_object_sets_keeps_its_order(tmp_path: Path) -> None:
    # GIVEN a number of another object, which a method of that object sets
    text = FLOW.replace("def limit", "def bound").replace("BOUND", BOUNDS[0]).replace("MOVED", MOVED[1])
    text = text.replace("self.limit()", "self.near.bound()").replace("peak * self.width", "peak * self.near.width")
    text = text.replace("f, args = Flow().move", "flow = Flow()\nflow.near = Flow()\nf, args = flow.move")
    # WHEN the line that reads it is moved THEN the method's call goes with it
    said = str(rewritten(text, tmp_path)).partition("def after_move")[2]
    assert "     self.log.append(peak * self.near.width)\n         self.near.bound()\n" in said


@pytest.mark.parametrize("bound", ["self.cap = min(self.cap, 20.0)", "width = self.cap; return width"])
def test_what_a_method_sets_for_itself_stays(tmp_path: Path, bound: str) -> None:
    # GIVEN a method that sets nothing that the line before it reads
    said = str(rewritten(FLOW.replace("BOUND", bound).replace("MOVED", MOVED[1]), tmp_path))
    # WHEN that line is moved THEN the method stays where it was
    assert "self.log.append(peak * self.width)\n-        self.limit()\n" in said.partition("def after_move")[2]
    assert "self.limit()\n+        return rate * 2, rate.detach()\n" in said
