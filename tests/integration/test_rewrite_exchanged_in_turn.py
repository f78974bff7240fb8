"""Buffers that a helper exchanges line by line, through a name that keeps one of them: it needs a copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")

HEAT = """
class Field:
    def __init__(self):
        self.u, self.new = torch.zeros(6, device=device), torch.zeros(6, device=device)
        self.old = torch.zeros(6, device=device)
def turn(s):
    TURN
field = Field()
def heat(s, q):
    torch.mul(s.u, 0.5, out=s.new)
    s.new.add_(q)
    turn(s)
def f(q):
    heat(field, q)
    return field.u.mean()
args = (torch.randn(6, device=device),)
"""
TWO = ("tmp = s.u", "s.u = s.new", "s.new = tmp")
FOLLOWED = re.compile(r"line (\d+) becomes `([^`]+)`")


def test_words_for_buffers_exchanged_through_a_name_keep_a_copy(tmp_path: Path) -> None:
    # GIVEN a helper that exchanges two buffers as one does in C WHEN it is diagnosed
    text = HEAT.replace("TURN", "\n    ".join(TWO))
    names = run(text, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    told = dict(FOLLOWED.findall(" ".join(str(found).split())))
    # THEN each line is told, and the name that keeps one of them has a copy
    assert [*told.values()] == ["tmp = s.u.clone()", "s.u.copy_(s.new)", "s.new.copy_(tmp)"]
    # AND with these lines nothing is told
    lines = (tmp_path / "program.py").read_text(encoding="utf-8").splitlines()
    for number, line in told.items():
        text = text.replace(lines[int(number) - 1].strip() + "\n", line + "\n")
    names = run(text, tmp_path)
    assert not pgk.diagnose(names["f"], *names["args"]).failures


@pytest.mark.sweep
@pytest.mark.parametrize("lines", [TWO, ("tmp = s.old", "s.old = s.u", "s.u = s.new", "s.new = tmp")])
def test_buffers_exchanged_through_a_name_are_written_in_place(tmp_path: Path, lines: tuple[str, ...]) -> None:
    # GIVEN the same of two buffers, or of three WHEN it is fixed THEN it is whole, with a copy of what is kept
    fix = rewritten(HEAT.replace("TURN", "\n    ".join(lines)), tmp_path)
    assert fix.complete, fix
    assert f"{lines[0]}.clone()" in lines_of(fix)


@pytest.mark.sweep
def test_name_that_no_later_line_reads_needs_no_copy(tmp_path: Path) -> None:
    # GIVEN a helper that names a buffer for a line ahead of the exchange WHEN it is fixed
    fix = rewritten(HEAT.replace("TURN", "tmp = s.u\n    s.old.copy_(tmp)\n    s.u = s.new.clone()"), tmp_path)
    # THEN there is no copy
    assert fix.complete, fix
    assert not any("tmp = s.u.clone()" in line for line in lines_of(fix))
