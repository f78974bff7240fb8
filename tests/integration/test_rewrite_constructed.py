"""New lines of a constructor: another object is made by them, or the words say that nobody has run them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.constructed import wrongly_made
from paramgraph_kit.rewrite.source.edits import Source
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\n"
MAKES = """class Warm:
    def __init__(self, w, start=2):
        self.w, self.t = w, start * 3
        self.device = device
MAKE
warm = Warm(2.0)
"""
FIRST = "self.w, self.t = w, start * 3"
NEW = {
    "the same value in a tensor": ("self.w, self.t = w, torch.tensor(start * 3, device=device)", ""),
    "today's value": ("self.w, self.t = w, torch.tensor(4, device=device)", "t: 6, then 4"),
    "what is not there yet": ("self.w, self.t = w, torch.tensor(start * 3, device=self.device)", "AttributeError"),
}
STEP = """class Warm:
    def __init__(self, w):
        self.w, self.t = w, 0
        MAKES
    def step(self, x):
        y = x * self.w if self.t < 3 else x
        self.t += 1
        return y
def main():
    w = 2.0
    return Warm(w)
warm = main()
"""


@pytest.mark.parametrize("name", NEW)
def test_an_object_that_new_lines_make_has_the_numbers_of_before(name: str, tmp_path: Path) -> None:
    # GIVEN other lines for a constructor
    line, why = NEW[name]
    file = tmp_path / "program.py"
    names = load(HEAD + MAKES.replace("MAKE\n", ""), file)
    source = Source.of(str(file))
    assert source is not None
    new = [each.replace(FIRST, line) for each in source.lines]
    # WHEN an object is made by them THEN what differs is told
    told, not_run = wrongly_made({str(file): source}, {str(file): new}, names)
    assert (bool(told), why in told, not_run) == (bool(why), True, []), told
    assert ast.parse("".join(new))


@pytest.mark.parametrize(
    ("line", "runs"), [("self.name = 'warm'", True), ("open('made.txt', 'w').close()", False)], ids=["plain", "a file"]
)
def test_a_constructor_that_nobody_has_run_is_said(
    line: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a count that becomes a tensor where its object is made
    monkeypatch.chdir(tmp_path)
    names = load(HEAD + STEP.replace("MAKES", line), tmp_path / "program.py")
    # WHEN a fix is asked for
    fix = pgk.diagnose(names["warm"].step, torch.ones(4, device=pgk.device()), fix=True).fix
    # THEN it is whole, and says whether its constructor was run
    assert fix is not None
    assert fix.complete, str(fix)
    assert "torch.tensor(0, device=device)" in fix.diff, str(fix)
    assert any("`Warm.__init__` were not run" in each for each in fix.verified) is not runs, str(fix)
