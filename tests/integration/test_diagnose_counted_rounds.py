"""A branch that the count of a loop's rounds decides is the same in round n of each call: the end of rounds is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the operations are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
RELAXED = """
EVERY = 5
class Solver:
    def __init__(self):
        self.p, self.every = torch.zeros(32, device=device), 5
        self.x = torch.linspace(-1, 2, 32, device=device)
    def step(self, b, tol=1e-2, limit=40):
        self.x = self.x * 4
        p = self.p
        it = 0
        while it < limit:
            p = 0.3 * (torch.roll(p, 1) + torch.roll(p, -1)) + self.x
            it += 1
            if it % EVERY == 0:
                res = (0.3 * (torch.roll(p, 1) + torch.roll(p, -1)) + self.x - p).abs().max()
                if res < tol:
                    break
        self.p = p
        return p.sum()
f = Solver().step
args = (torch.zeros(8, device=device),)
"""
GATE, END = "if it % EVERY == 0:", "if res < tol:"
OF_RANGE = (
    RELAXED.replace("        it = 0\n", "")
    .replace("while it < limit:", "for it in range(1, 41):")
    .replace("            it += 1\n", "")
)
BY_TEST = RELAXED.replace("while it < limit:", "res = self.x.max()\n        while res > tol and it < limit:").replace(
    "                if res < tol:\n                    break\n", ""
)


def _told(text: str, folder: Path) -> set[tuple[str, str]]:
    names = run(text, folder)
    found = [f for f in pgk.diagnose(names["f"], *names["args"]) if f.frame is not None]
    return {(f.code, f.frame.text) for f in found if f.frame is not None}


def _is_its_end_alone(text: str, gate: str, end: str, folder: Path) -> None:
    # GIVEN a solver that asks in each fifth round whether it is done, and needs more rounds in another call
    # WHEN it is diagnosed
    told = _told(text, folder)

    # THEN what ends the rounds is told, and not what the round's number decides
    assert ("data-dependent-branch", end) in told, told
    assert not [each for each in told if each[1] == gate], told


def test_a_count_of_rounds_is_not_what_decides(tmp_path: Path) -> None:
    _is_its_end_alone(RELAXED, GATE, END, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("every", ["EVERY", "self.every"])
def test_a_count_by_range_is_not_what_decides(every: str, tmp_path: Path) -> None:
    _is_its_end_alone(OF_RANGE.replace("% EVERY", f"% {every}"), GATE.replace("EVERY", every), END, tmp_path)


@pytest.mark.sweep
def test_the_test_of_a_loop_ends_rounds_too(tmp_path: Path) -> None:
    _is_its_end_alone(BY_TEST, GATE, "while res > tol and it < limit:", tmp_path)


COUNTED = """
class Logger:
    def __init__(self):
        self.n, self.every = 0, 2
    def step(self, x):
        for i in range(4):
            x = x * 0.5
            if TEST:
                x = x + x.abs().sqrt().sum() + x.exp().mean()
        self.n += 1
        return x
f = Logger().step
args = (torch.ones(4, device=device),)
"""


@pytest.mark.parametrize("test", ["(i + self.n) % 2 == 0 and self.n % 2", "i % (1 + self.n % 3) == 0"])
def test_a_count_that_goes_on_from_call_to_call_decides(test: str, tmp_path: Path) -> None:
    # GIVEN a branch in rounds that also asks how many calls there were
    # WHEN it is diagnosed
    told = _told(COUNTED.replace("TEST", test), tmp_path)

    # THEN it is frozen
    assert ("branch-frozen", f"if {test}:") in told, told


def test_a_count_of_rounds_alone_is_sound(tmp_path: Path) -> None:
    # GIVEN a branch that the round's number alone decides, in as many rounds of each call
    # WHEN it is diagnosed
    told = _told(COUNTED.replace("TEST", "i % self.every == 0").replace("        self.n += 1\n", ""), tmp_path)

    # THEN nothing is told
    assert not told
