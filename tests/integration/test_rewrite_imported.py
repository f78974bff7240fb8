"""Fixes of lines in modules that a program imports as modules: ``sampling.euler(x)``, ``utils.seen += 1``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SAMPLER = """
# file: sampling_of_ours.py
import torch
calls = 0
def walk(net, x, rounds):
    global calls
    calls += 1
    at = torch.tensor([rounds], device=x.device)
    for _ in range(rounds):
        x = x + net(x) / at
    return x
# file: the program
import sampling_of_ours as S
net = nn.Linear(4, 4).to(device)
args = (torch.randn(2, 4, device=device),)
def f(x):
    return S.walk(net, x, 3)
"""
INSIDE = SAMPLER.replace("import sampling_of_ours as S\n", "").replace("    return S.", "    import sampling_of_ours as S\n    return S.")  # fmt: skip


@pytest.mark.parametrize("program", [SAMPLER, INSIDE], ids=["by the file", "by the function"])
def test_lines_of_an_imported_module_are_rewritten(program: str, tmp_path: Path) -> None:
    # GIVEN a function that calls another one by its module WHEN it is rewritten
    fix = rewritten(program, tmp_path)
    # THEN the other one's line is, too, and what it counts there is left as it was
    assert "at = torch.full((1,), rounds, dtype=torch.int64, device=x.device)" in lines_of(fix), fix


def test_what_a_function_counts_in_an_imported_module_is_found(tmp_path: Path) -> None:
    # GIVEN a function that counts in a module WHEN it is diagnosed
    names = run(SAMPLER, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the counter is told, and stands where it stood
    assert "host-counter" in [each.code for each in found.failures], found
    assert names["S"].calls == 0
