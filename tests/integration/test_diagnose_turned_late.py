"""What a call changes that no call before it did: only the call behind it shows what comes of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

CURRICULUM = """
class Curriculum:
    def __init__(self):
        self.lengths, self.stage, self.good = (2, 3, 4), 0, 0
    def horizon(self):
        return self.lengths[self.stage]
    def report(self, loss):
        self.good = self.good + 1 if loss < 50.0 else 0
        if self.good >= 3 and self.stage < 2:
            self.stage += 1
            self.good = 0
cur = Curriculum()
def rollout(x, n):
    for t in range(n):
        x = x * 0.5
    return x / n
def f(x):
    loss = rollout(x, LENGTH).sum()
    cur.report(loss.item())
    return loss
args = (torch.randn(4, device=device),)
"""


def test_a_stage_that_comes_when_a_patience_is_used_up_is_seen_in_the_call_behind_it(tmp_path: Path) -> None:
    # GIVEN a step whose rounds a curriculum gives, which goes on behind three good losses
    names = run(CURRICULUM.replace("LENGTH", "cur.horizon()"), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN its loop is told, with a graph for each number of rounds, and so is what computes with that
    told = {f.frame.text.strip(): f for f in found.failures if f.code in ("branch-frozen", "scalar-frozen")}
    assert {"for t in range(n):", "return x / n"} <= told.keys()
    assert "`graphs[cur.horizon()]`, captured when it first comes" in told["for t in range(n):"].fix
    assert "stays as it is, in a graph for each `n`" in told["return x / n"].fix


@pytest.mark.sweep
def test_a_stage_that_no_line_of_the_device_reads_is_none(tmp_path: Path) -> None:
    # GIVEN the same with rounds that are always two WHEN diagnosed THEN no loop is told
    names = run(CURRICULUM.replace("LENGTH", "2"), tmp_path)
    found: Any = pgk.diagnose(names["f"], *names["args"])
    assert not [f for f in found.failures if f.code in ("branch-frozen", "scalar-frozen", "size-frozen")]


GATED = """
class Filter:
    def __init__(self):
        self.x, self.q = torch.zeros(4, device=device), 0.01
    def step(self, z):
        self.x = 0.9 * self.x + QUIET
        if (z - self.x).abs().sum() > 900:
            self.q = min(self.q * 2, 1.0)
        return self.x + z
filter_ = Filter()
f, args = filter_.step, (torch.randn(4, device=device),)
"""


@pytest.mark.parametrize("moves", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_a_number_that_a_rare_branch_moves_is_told_beside_the_state_of_its_line(tmp_path: Path, moves: bool) -> None:
    # GIVEN a filter whose noise, read where its state is given anew, grows where a gate shuts; and one that reads none
    names = run(GATED.replace("QUIET", "self.q" if moves else "0.01"), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN that line is told for both, and with what the number is filled
    at = [f for f in found.failures if f.frame.text.strip().startswith("self.x = ")]
    assert [f.code for f in at] == ["stale-input", "scalar-frozen"][: 1 + moves]
    assert not moves or "`q_in.fill_(self.q)`" in at[1].fix
