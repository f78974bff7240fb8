"""Fixes of functions whose states all begin as one number, or as each other: what six steps alone do not tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.filled import Filling, fillings
from paramgraph_kit.rewrite.proving.launches import Launches
from paramgraph_kit.rewrite.proving.proof import Prover
from tests.integration.rewritten import rewritten, run
from tests.programs.running import captured, differences, eager

ZEROS = """\
rho = torch.zeros(8, device=device)
tmp = torch.zeros(8, device=device)
args = ()
def f():
    global rho, tmp
    old = rho
    rho = tmp
    tmp = old
    tmp = tmp * 0.5 + rho
    return rho.sum()
"""
ALIKE = ZEROS.replace("torch.zeros(8", "torch.arange(8.0")
HISTORY = """\
class History:
    def __init__(self):
        self.now = torch.zeros(4, device=device)
        self.before = torch.zeros(4, device=device)
    def __call__(self):
        f = torch.sin(self.now) - 0.3 * self.before
        self.before = self.now
        self.now = self.now + 0.1 * f
        return self.now.norm()
f = History()
args = ()
"""


def _moved(names: dict[str, Any]) -> dict[str, Any]:
    """A program whose states are others than those that it began with."""
    held = [*(vars(names["f"]).values() if not hasattr(names["f"], "__code__") else ()), *names.values()]
    for number, tensor in enumerate(each for each in held if isinstance(each, torch.Tensor)):
        tensor.copy_(torch.arange(1.0, tensor.numel() + 1).view_as(tensor) / (number + 2))
    return names


@pytest.mark.parametrize("text", [ZEROS, ALIKE, HISTORY])
def test_a_fix_of_states_that_are_alike_is_right_for_others_too(text: str, tmp_path: Path) -> None:
    """Of zeros, and of two buffers with the same numbers, six steps show no exchange that has gone wrong."""
    # GIVEN a function without arguments whose states are all alike
    truth = eager(_moved(run(text, tmp_path)), "f")
    names = run(text, tmp_path)
    # WHEN it is rewritten, and its states are others
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    _moved(names)
    # THEN what is said to be whole, or a part, gives eager's numbers from these; nothing else is shown as tried
    with fix.applied() as made:
        if fix.alone:
            names[fix.alone] = Launches(made, fix.around, fix.bound)
        seen = eager(names, "f") if fix.alone else captured(names, "f", fix.around) if fix.complete else truth
    assert not differences(truth, seen, set()), fix


SWAPS = {
    "of attributes": """\
class Sim:
    def __init__(self):
        self.a, self.b = torch.zeros(8, device=device), torch.zeros(8, device=device)
    def __call__(self):
        c = torch.roll(self.a, 1) * 0.5 + self.a * 0.5
        self.a, self.b = self.b, self.a
        return (c - self.b).abs().max() + self.a.sum()
f = Sim()
args = ()
""",
    "with a name for a while": ZEROS,
    "of grids that are written in place": """\
cur, nxt = torch.zeros(6, device=device), torch.zeros(6, device=device)
args = (torch.rand(6, device=device),)
def f(x):
    global cur, nxt
    nxt[1:-1] = 0.5 * (cur[:-2] + cur[2:]) + x[1:-1]
    cur, nxt = nxt, cur
    return (cur - nxt).abs().max().item()
""",
    "of tuples": """\
fast = (torch.zeros(2, device=device), torch.zeros(2, device=device))
slow = (torch.ones(2, device=device), torch.ones(2, device=device))
args = (torch.rand(2, device=device),)
def f(x):
    global fast, slow
    old = fast
    fast = tuple(each * 0.5 + x for each in slow)
    slow = old
    return fast[0] + slow[1]
""",
    "of what was there before with what is returned": """\
u = torch.zeros(6, device=device)
args = (torch.randn(6, device=device),)
def f(x):
    global u
    old = u
    u = u + 0.1 * x
    change = (u - old).abs().max()
    return old[:3], u[3:], change
""",
    "of the last with the new one": """\
class Heat:
    def __init__(self):
        self.u, self.prev = torch.zeros(8, device=device), torch.zeros(8, device=device)
    def step(self):
        new = self.u + 0.1 * (torch.roll(self.u, 1) - 2 * self.u + torch.roll(self.u, -1)) + 0.01
        self.prev = self.u
        self.u = new
        return (self.u - self.prev).abs().max().item()
f = Heat().step
args = ()
""",
}


@pytest.mark.parametrize("text", SWAPS.values(), ids=SWAPS.keys())
def test_states_that_are_exchanged_are_copied_first(text: str, tmp_path: Path) -> None:
    """Each is written at the end of the step, by when no name leads to another one's memory."""
    # GIVEN / WHEN
    fix = rewritten(text, tmp_path)
    # THEN one graph holds it, also from other states and with results that are kept
    assert fix.complete, fix
    assert ".clone()" in fix.diff


def test_how_far_a_state_has_moved_is_one_graph(tmp_path: Path) -> None:
    """Written in place where it stands it would have moved by nothing."""
    # GIVEN a solver's step that asks how far it has come, by a name of what was there
    text = """\
u = torch.zeros(6, device=device)
args = (torch.randn(6, device=device),)
def f(x):
    global u
    old = u
    u = u + 0.1 * (x - u)
    return (u - old).abs().max()
"""
    # WHEN
    fix = rewritten(text, tmp_path)
    # THEN it is written in the end
    assert fix.complete, fix
    assert "u.copy_(u_now.detach())" in fix.diff


def test_only_what_is_alike_is_filled_and_put_back() -> None:
    """A count of the device, numbers that differ, and what no number is, stay; versions do, too."""
    # GIVEN states of which two are alike and one is all zeros
    device = pgk.device()
    zeros, first, second = torch.zeros(3, device=device), torch.arange(3.0), torch.arange(3.0)
    count, best = torch.zeros((), dtype=torch.long, device=device), torch.full((), torch.inf, device=device)
    states = [zeros, first, second, count, best]

    def step(x: torch.Tensor) -> torch.Tensor:
        return x + sum(each.sum() for each in states)

    versions = [each._version for each in states]
    prover = Prover(step, (torch.zeros(2, device=device),), {})
    # WHEN they are filled
    before = [each.clone() for each in states]
    with Filling(prover).applied():
        moved = [not torch.equal(each, then) for each, then in zip(states, before, strict=True)]
        low, high = float(zeros.min()), float(zeros.max())
    # THEN these two are, with what may be a probability, and all is as it was afterwards
    assert moved == [True, False, True, False, False]
    assert 0 <= low < high < 1
    assert all(torch.equal(each, then) for each, then in zip(states, before, strict=True))
    assert versions == [each._version for each in states]
    # AND an input of zeros is another one in each step
    first_step, second_step = (Filling(prover).inputs(i, prover.inputs)[0][0] for i in range(2))
    assert not torch.equal(first_step.cpu(), second_step.cpu())


def test_nothing_is_filled_where_all_differs() -> None:
    """Then there is no further trial."""
    # GIVEN a state with numbers that differ
    state = torch.arange(4.0, device=pgk.device())
    # WHEN it is asked what to fill THEN nothing is
    assert not fillings(Prover(lambda x: x + state, (torch.arange(4.0, device=pgk.device()),), {}), anything=True)
