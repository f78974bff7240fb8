"""A branch that looks up a place which its test makes sure of, ``table[i] if i >= 0 else last``, is chosen there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

HEAD = """
class Scheduler:
    def __init__(self, n=40):
        self.alphas = torch.linspace(0.99, 0.1, n).to(device)
        self.last = torch.ones(()).to(device)
        self.n = n
    def step(self, x, t):
        prev = t - 4
        {look}
        return x * self.alphas[t] ** 0.5 + a ** 0.5
f, args = Scheduler().step, (torch.randn(4).to(device), torch.tensor({t}).to(device))
"""
TERNARY = "a = self.alphas[prev] if prev >= 0 else self.last"
BRANCH = """if prev < self.n - 10:
            a = self.alphas[prev]
        else:
            a = self.last"""
OF_THE_HOST = "a = self.alphas[self.n - 4] if self.n >= 4 else self.last"


@pytest.mark.parametrize(
    ("look", "t"),
    [
        pytest.param(TERNARY, 9, id="in one line"),
        pytest.param(TERNARY, 2, id="not taken", marks=pytest.mark.sweep),
        pytest.param(BRANCH, 39, id="by a branch", marks=pytest.mark.sweep),
    ],
)
def test_what_a_test_makes_sure_of_is_looked_up_in_any_case(look: str, t: int, tmp_path: Path) -> None:
    # GIVEN a scheduler that looks up the step before, if there is one WHEN fixed
    fix = rewritten(HEAD.format(look=look, t=t), tmp_path)
    # THEN the device looks up place 0 where there is none, and takes the other value
    assert fix.complete, fix
    assert "prev, 0).reshape(1)][0]" in fix.diff
    assert "after_" not in fix.diff, "nothing goes behind the launch"


@pytest.mark.sweep
def test_a_branch_of_the_host_stays_as_it_is(tmp_path: Path) -> None:
    # GIVEN the same where the host knows the place WHEN fixed
    fix = rewritten(HEAD.format(look=OF_THE_HOST, t=9), tmp_path)
    # THEN only the other lookup is written
    assert fix.complete, fix
    assert "if self.n >= 4" not in fix.diff.replace(" " + OF_THE_HOST, "")
