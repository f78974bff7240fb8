"""A part of a helper hands out its graph's memory: what the helper's callers keep of that is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HELPER = """\
w = (torch.randn(8, 8) * 0.3).to(device)
args = (torch.randn(8).to(device), [torch.randn(8).to(device) for _ in range(5)])
def trial(x, u):
    y = torch.tanh(x @ w + u)
    y = y - 0.1 * y ** 3
    s = (y * y).sum()
    return y, s.item()
def f(x, us):
    best = {"y": x, "s": 1e9}
    for u in us:
        y, s = trial(x, u)
        if s < best["s"]:
            best["y"], best["s"] = y, s
        x = y
    return best["y"]
"""


def test_what_a_helper_returns_of_its_part_is_copied_for_its_caller(tmp_path: Path) -> None:
    # GIVEN a helper that returns a tensor beside a number that it reads, and a caller that keeps the best of them
    names = run(HELPER, tmp_path)
    # WHEN a part of the helper is cut out
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN what it returns is copied behind the launch, and what only becomes a number is not
    assert fix.alone == "trial_part", fix
    assert "+    y = y.clone()" in fix.diff, fix
    assert "s.clone()" not in fix.diff, fix


SOLVER = """\
def solve(apply, b):
    x, r = torch.zeros_like(b), b.clone()
    p, rs = r.clone(), (r * r).sum()
    while rs.sqrt() > 1e-4:
        ap = apply(p)
        alpha = rs / (p * ap).sum()
        x = x + alpha * p
        r = r - alpha * ap
        new = (r * r).sum()
        p = r + (new / rs) * p
        rs = new
    return x
args = (torch.rand(4).to(device), torch.randn(4).to(device))
def f(u, b):
    return solve({apply}, b)
"""


@pytest.mark.parametrize(
    ("apply", "says"), [("lambda v: v * (1 + u)", True), ("double", False)], ids=["of the call", "of the file"]
)
def test_a_round_with_a_function_of_its_call_says_that_its_graph_keeps_it(
    apply: str, says: bool, tmp_path: Path
) -> None:
    # GIVEN a loop that is given a function, which has a tensor of the call that made it, or nothing
    names = run("def double(v):\n    return v * 2\n" + SOLVER.replace("{apply}", apply), tmp_path)
    # WHEN one round is cut out
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it is told that another function needs another graph
    assert fix.alone == "solve_round", fix
    assert ("its graph keeps `apply`: capture it anew where that changes" in str(fix)) == says
