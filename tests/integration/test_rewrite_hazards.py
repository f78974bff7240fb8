"""What a trial of some steps alike does not show: a rewrite that would be wrong elsewhere is none, or says where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, run
from tests.programs.running import eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


def fix_of(text: str, folder: Path) -> Any:
    """What is made of a program's ``f``."""
    names = run(text, folder)
    return pgk.diagnose(names["f"], *names["args"], fix=True).fix


def test_a_number_that_is_only_printed_is_compared(tmp_path: Path) -> None:
    # GIVEN a step that prints a count that goes on after the line that prints it
    text = """\
n = 0
args = (torch.rand(4, device=device) + 1,)
def f(x):
    global n
    n += 1
    y = x * 2
    s = y.max().item()
    print("step", n, "largest", s)
    y = y / s
    n += 1
    return y
"""
    # WHEN it is rewritten
    fix = fix_of(text, tmp_path)
    # THEN no line is right that would print another count
    assert not any("print(" in line for line in lines_of(fix)) or not fix.complete, fix
    assert eager(run(text, tmp_path), "f")["n"] == [20]
