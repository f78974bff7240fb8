"""Numbers that are asked for what they are, `is True`, `match`, `isinstance`: a tensor in their place answers wrongly.

None of the branches here is taken in a trial, so that equal results are no proof.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

NEVER = """
import functools
HELPER
@torch.no_grad()
def f(x):
    y = x * 2
    c = y.mean() > 1e9
    LINES
args = (torch.randn(4).to(device),)
"""
MATCH = "match c.item():\n        case True:\n            y = y * 2\n    return y"
IN_A_LINE = {
    "match": MATCH,
    "a name that is matched": f"v = c.item()\n    {MATCH.replace('c.item()', 'v')}",
    "a class that is matched": MATCH.replace("c.item()", "y.mean().item()").replace("True", "float(n) if n > 1e9"),
    "is": "k = 2.0 if c.item() is True else 1.0\n    return y * k",
    "isinstance": "k = 2.0 if isinstance(y.mean().item(), int) else 1.0\n    return y * k",
    "a lambda": "return y * (lambda v: 2.0 if v is True else 1.0)(c.item())",
    "its text": "return y * (2.0 if str(c.item()) == 'True' else 1.0)",
}
HELPERS = {
    "is": "def scale(v):\n    return 2.0 if v is True else 1.0",
    "match": "def scale(v):\n    match v:\n        case True:\n            return 2.0\n    return 1.0",
    "a table": "T = {True: 2.0}\ndef scale(v):\n    return T.get(v, 1.0)",
    "two deep": "def ask(n):\n    return isinstance(n, bool) and n\ndef scale(v):\n    return 2.0 if ask(v) else 1.0",
    "a cache": "@functools.lru_cache\ndef scale(v):\n    return 1.0 + v",
    "another module": "import asks_there\nscale = asks_there.scale\n",
}
ELSEWHERE = "# file: asks_there.py\ndef scale(v):\n    return 2.0 if v is True else 1.0\n"
BY_VALUE = "def scale(v):\n    return 1.0 + v"


def _lines(lines: str, folder: Path, helper: str = "") -> str:
    more = ELSEWHERE if "asks_there" in helper else ""
    fix = rewritten(f"{NEVER.replace('HELPER', helper).replace('LINES', lines)}{more}", folder)
    return "\n".join(line for line in fix.diff.splitlines() if line.startswith("+"))


@pytest.mark.sweep
@pytest.mark.parametrize("spelling", IN_A_LINE)
def test_a_number_that_a_line_asks_for_itself_is_read(spelling: str, tmp_path: Path) -> None:
    # GIVEN a line that asks a number for what it is WHEN fixed
    text = _lines(IN_A_LINE[spelling], tmp_path)
    # THEN it is read behind the launch, if there is a diff: no tensor is asked in its place
    assert ".item()" in text or not text, text


@pytest.mark.parametrize("asks", [pytest.param(n, marks=[pytest.mark.sweep] * (n != "match")) for n in HELPERS])
@pytest.mark.parametrize("call", ["scale(c.item())", pytest.param("scale(v=c.item())", marks=pytest.mark.sweep)])
def test_a_number_that_a_helper_asks_for_itself_is_read(asks: str, call: str, tmp_path: Path) -> None:
    # GIVEN a helper that does so, with what it is given WHEN fixed
    text = _lines(f"return y * {call}", tmp_path, HELPERS[asks])
    # THEN it has the number behind the launch
    assert ".item()" in text, text


@pytest.mark.sweep
def test_a_number_that_a_helper_computes_with_stays_on_the_device(tmp_path: Path) -> None:
    # GIVEN a helper that computes with what it is given WHEN fixed THEN it has the tensor, in the graph
    assert "scale(c.detach())" in _lines("return y * scale(c.item())", tmp_path, BY_VALUE)


EPOCHS = """
STEPS = {9: 0.5, 21: 2.0}
class Runner:
    def __init__(self):
        self.n = self.epoch = 0
    @torch.no_grad()
    def step(self, x):
        self.n += 1
        if self.n % 6 == 0:
            self.epoch += 1
        return x * RATE + self.epoch
f = Runner().step
args = (torch.randn(4).to(device),)
"""
BY_HASH = {"get": "STEPS.get(self.epoch, 1.0)", "in": "(2.0 if self.epoch in STEPS else 1.0)"}


@pytest.mark.parametrize("by", [pytest.param(n, marks=[pytest.mark.sweep] * (n != "get")) for n in BY_HASH])
def test_a_count_that_a_table_is_asked_for_becomes_no_tensor(by: str, tmp_path: Path) -> None:
    # GIVEN a count in a branch, and a table whose entries are far from what a trial comes to WHEN fixed
    fix = rewritten(EPOCHS.replace("RATE", BY_HASH[by]), tmp_path)
    # THEN no diff says that it is verified with a tensor as its key, by which a table finds nothing
    assert not (fix.complete and "self.epoch += torch.where" in fix.diff), fix.diff


@pytest.mark.sweep
def test_a_count_that_is_computed_with_may_become_one(tmp_path: Path) -> None:
    # GIVEN the same without a table WHEN fixed THEN the count is a tensor of the graph's
    fix = rewritten(EPOCHS.replace("RATE", "2.0"), tmp_path)
    assert fix.complete
    assert "self.epoch" in fix.diff
