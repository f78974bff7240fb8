"""Words for what the device ends or leaves out: they are no branch again, and name what decides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import rewritten, run

pytestmark = pytest.mark.usefixtures("recovered")

COUNTS = """
class Filter:
    def __init__(self):
        self.x, self.resampled = torch.ones(4, device=device), 0
    def step(self, w):
        ess = 1.0 / (w ** 2).sum()
        if ess < 2.0:
            idx = torch.searchsorted(torch.cumsum(w, 0), w).clamp_(max=3)
            self.x = self.x[idx]
            self.resampled += 1
        return self.x.sum()
step = Filter().step
"""
SETTLES = """
def step(x):
    while True:
        new = torch.minimum(x, x.roll(1))
        if torch.equal(new, x):
            return x
        x = new
"""
ROUNDS = """
def step(x, n):
    rank = torch.full((n,), 1.0 / n, device=device)
    for _ in range(9):
        new = 0.5 * rank + 0.5 * x[:1] / n
        err = (new - rank).abs().sum()
        rank = new
        if err < 1e-2:
            break
    return rank
"""


def _words(text: str, folder: Path, *args: object) -> list[tuple[str, str]]:
    step = run(text, folder)["step"]
    return [(f.code, f.fix.rpartition("after   ")[2]) for f in pgk.diagnose(step, *args).failures]


def test_a_branch_that_also_counts_is_not_told_as_a_branch_by_a_name(tmp_path: Path) -> None:
    # GIVEN a particle filter that resamples where the device says so, and counts that on the host
    # WHEN it is diagnosed
    told = _words(COUNTS, tmp_path, torch.tensor([0.7, 0.1, 0.1, 0.1], device=pgk.device()))
    # THEN no word is a branch again
    assert any(code == "data-dependent-branch" for code, _ in told)
    assert not [fix for _, fix in told if "if chosen:" in fix], told


def test_a_loop_that_ends_where_nothing_changes_is_told_by_its_rounds(tmp_path: Path) -> None:
    # GIVEN labels that spread until two rounds are equal
    # WHEN it is diagnosed
    told = _words(SETTLES, tmp_path, torch.arange(4, device=pgk.device()))
    # THEN one round is what is captured
    (fix,) = [fix for code, fix in told if code == "compare-on-cpu"]
    assert "make one round of the loop at line" in fix, fix
    assert "ask `torch.equal(new, x)` behind each launch" in fix, fix


@pytest.mark.sweep
def test_rounds_that_a_tolerance_ends_are_not_told_as_an_argument_s(tmp_path: Path) -> None:
    # GIVEN a loop that a tolerance ends, in a step with a size among its arguments
    # WHEN it is diagnosed
    told = _words(ROUNDS, tmp_path, torch.ones(3, device=pgk.device()), 40)
    # THEN where its rounds are told, that tolerance is named
    for code, fix in told:
        assert code != "branch-frozen" or "`if err < 1e-2`, ends its rounds" in fix, fix


SHIFTS = """
class Bashforth:
    def __init__(self):
        self.y = torch.linspace(0.1, 1, 8, device=device)
        self.f = [torch.full((8,), 0.1 * k, device=device) for k in range(3)]
    def step(self):
        self.f[1:] = self.f[:-1]
        self.f[0] = self.y * (1 - self.y)
        self.y.add_(0.01 * (23 * self.f[0] - 16 * self.f[1] + 5 * self.f[2]) / 12)
        return self.y.clone()
step = Bashforth().step
"""


def test_a_list_that_two_lines_move_on_is_told_as_one_copy_of_each(tmp_path: Path) -> None:
    # GIVEN slopes of the last steps in a list, which two lines move on
    # WHEN it is diagnosed
    told = _words(SHIFTS, tmp_path)
    # THEN the words copy all of them, and do not leave one tensor in two places
    (fix,) = [fix for code, fix in told if code == "stale-input"]
    assert "zip(self.f, [each.clone() for each in [self.y * (1 - self.y), *self.f[:-1]]], strict=True)" in fix, fix


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("first", "second"), [("past[1:] = past[:-1]", "past[0] = x * 2"), ("past[:-1] = past[1:]", "past[-1] = x * 2")]
)
def test_a_list_that_two_lines_move_on_keeps_its_tensors(first: str, second: str, tmp_path: Path) -> None:
    # GIVEN the last inputs in a list, which two lines move on
    text = f"""
past = [torch.zeros(3, device=device) for _ in range(3)]
def f(x):
    {first}
    {second}
    return past[0] + 2 * past[1] + 3 * past[2]
args = (torch.randn(3, device=device),)
"""
    # WHEN it is rewritten
    fix = rewritten(text, tmp_path)
    # THEN its tensors stay, and their numbers move
    assert fix.complete, fix
    assert "for held, new in zip(past" in fix.diff
    assert f"-    {second}" in fix.diff
