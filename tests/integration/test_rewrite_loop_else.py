"""Loops with an ``else`` that the device ends, and what tells of their end: put off as a whole, and as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run
from tests.programs.running import captured, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SOLVER = """
class Solver:
    def __init__(self, most):
        self.most, self.rounds, self.warned = most, [], 0
        self.w = torch.randn(6, 6, device=device) * 0.1
    def solve(self, x):
        z = torch.zeros_like(x)
        for i in range(self.most):
            new = torch.tanh(z @ self.w + x)
            error = (new - z).norm()
            z = new
            if error.item() < {tol}:
                break
        else:
            print("did not converge", error.item())
        self.rounds.append(i + 1)
        return z
solver = Solver({most})
args = (torch.randn(3, 6, device=device),)
@torch.no_grad()
def f(x):
    return solver.solve(x) * 2
"""


@pytest.mark.parametrize(("tol", "most"), [("1e-3", 12), ("1e-9", 3), ("1e-2", 5)])
def test_what_an_else_tells_is_told_behind_the_launch(tol: str, most: int, tmp_path: Path) -> None:
    # GIVEN a solver that says so where it has not come to rest, and keeps how many rounds it took
    text = SOLVER.format(tol=tol, most=most)
    before = run(text, tmp_path)
    eager(before, "f")
    # WHEN rewritten THEN it is whole, and all of that is done once, behind the launch
    fix = rewritten(text, tmp_path)
    assert fix.complete, str(fix)
    new = lines_of(fix)
    assert "if not done:" in new
    assert sum("did not converge" in line for line in new) == 1
    # AND the list keeps numbers, and the same ones
    names = run(text, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert found is not None
    with found.applied():
        captured(names, "f", found.around)
    assert names["solver"].rounds == before["solver"].rounds
    assert all(type(each) is int for each in names["solver"].rounds)


def test_an_else_that_computes_is_left(tmp_path: Path) -> None:
    # GIVEN an else that gives another result
    text = SOLVER.format(tol="1e-3", most=12).replace('print("did not converge", error.item())', "z = z * 0")
    # WHEN rewritten THEN the numbers are the original's or it says what to do
    fix = rewritten(text, tmp_path)
    assert fix.complete or fix.instead


SAME_NAME = """
class Net:
    def __init__(self):
        self.rounds, self.limit = [], 0.5
    def forward(self, x):
        rounds = (x > 0).sum()
        last = x.abs().max()
        if last.item() >= self.limit:
            print("large", last.item())
        self.rounds.append(int(rounds))
        return x * 2 + rounds
net = Net()
args = (torch.randn(3, 6, device=device),)
def f(x):
    return net.forward(x) + 1
"""


def test_a_branch_that_only_tells_is_put_off_whole_beside_a_name_like_that_of_a_list(tmp_path: Path) -> None:
    # GIVEN a method that tells, and a local name that is also an attribute's WHEN rewritten
    fix = rewritten(SAME_NAME, tmp_path)
    # THEN the branch is put off as it stands, once
    assert fix.complete, str(fix)
    assert fix.diff.count('print("large", last.item())') == 1
    assert "def work(last, rounds, self):" in lines_of(fix)


IN_ROUNDS = "    for i in range(3):\n        if x[i : i + 1] > 0.5:\n            {end}\n        k += 1\n"
ONE_ELEMENT = {
    "a branch": "    if x[:1] > 0.5:\n        k = 2\n",
    "a loop that ends early": IN_ROUNDS.format(end="break"),
    "a loop that leaves rounds out": IN_ROUNDS.format(end="continue"),
}


@pytest.mark.parametrize("title", ONE_ELEMENT)
def test_a_number_gets_no_dimensions_of_what_decides_it(title: str, tmp_path: Path) -> None:
    # GIVEN a number that a tensor of one element, with a dimension, decides
    given = "total = 0\nargs = (torch.randn(4, device=device),)\n"
    body = f"    global total\n    k = 0\n{ONE_ELEMENT[title]}    total += k\n    return x * 2 + k\n"
    # WHEN it is rewritten THEN it is whole, and captured the number is eager's, in its shape, too
    fix = rewritten(f"{given}def f(x):\n{body}", tmp_path)
    assert fix.complete, str(fix)
    assert any(".squeeze()" in line for line in lines_of(fix)), fix
