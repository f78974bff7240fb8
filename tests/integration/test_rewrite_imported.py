"""Fixes of lines in modules that a program imports as modules: ``sampling.euler(x)``, ``utils.seen += 1``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SAMPLER = """
import torch
calls = 0
def walk(net, x, rounds):
    global calls
    calls += 1
    at = torch.tensor([rounds], device=x.device)
    for _ in range(rounds):
        x = x + net(x) / at
    return x
"""
PROGRAM = """
import sampling_of_ours as S
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
def f(x):
    return S.walk(net, x, 3)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sampling_of_ours.py").write_text(SAMPLER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sampling_of_ours", raising=False)


def test_lines_of_an_imported_module_are_rewritten(tmp_path: Path) -> None:
    # GIVEN a function that calls another one by its module WHEN it is rewritten
    fix = rewritten(PROGRAM, tmp_path)
    # THEN the other one's lines are, too, in its own file
    assert fix.complete, fix
    assert "sampling_of_ours.py" in fix.diff
    assert "at = at_in" in lines_of(fix), fix


def test_what_a_function_counts_in_an_imported_module_is_found(tmp_path: Path) -> None:
    # GIVEN a function that counts in a module WHEN it is diagnosed
    names = run(PROGRAM, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the counter is told, and stands where it stood
    assert "host-counter" in [each.code for each in found.failures], found
    assert names["S"].calls == 0
