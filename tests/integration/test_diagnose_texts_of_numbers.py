"""Number arguments whose text decides, and those that nobody can follow: what they decide is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import datetime, re
import numpy as np, torch, paramgraph_kit as pgk
device = pgk.device()
RATES, LATE = {"stage2": 3.0, "stage4": 5.0}, np.array([55, 77])
PAIRS, TABLE = {(3, 9): 2.0}, [1.0] * 50 + [2.0] * 50
class Config:
    scale_1, scale_5 = 1.0, 2.0
config = Config()
def due(t):
    return re.match("^(12|24|36)$", str(t))
def spelled(t):
    return "%04d" % t
def day(t):
    return datetime.date(2025, 1, 1) + datetime.timedelta(days=t)
def f(x, t, n=1):
    return (x + 1) * (BY)
args = (torch.ones(4, device=device), 1)
"""
FOLLOWED = {
    "the end of its text": '2.0 if str(t).endswith("3") else 1.0',
    "a digit": '2.0 if f"{t}"[0] == "9" else 1.0',
    "a digit in it": '2.0 if "5" in str(t) else 1.0',
    "with zeros ahead": '2.0 if format(t, "04d")[1] == "1" else 1.0',
    "a part of a name": '2.0 if f"it-{t}".split("-")[1] == "17" else 1.0',
    "a key made of it": 'RATES.get(f"stage{t // 20}", 1.0)',
    "an attribute's name": 'getattr(config, f"scale_{t}", 1.0)',
    "a pattern in a helper": "2.0 if due(t) else 1.0",
    "digits of another base": '2.0 if hex(t)[-1] == "f" else 1.0',
    "a helper's digits": '2.0 if spelled(t)[-2:] == "75" else 1.0',
    "its digits read forwards and back": "2.0 if str(t + 12) == str(t + 12)[::-1] else 1.0",
}
FURTHER = {
    "two that have to meet": "2.0 if (t, n) == (3, 9) else 1.0",
    "two that are one key": "PAIRS.get((t, n), 1.0)",
    "what numpy finds": "2.0 if np.isin(t, LATE) else 1.0",
    "a place far on in a table": "TABLE[t]",
    "a month": "2.0 if day(t).month == 12 else 1.0",
}
SOUND = {
    "a text that is told": 'len([f"step {t} of 100"])',
    "a key that none has": '1.0 if f"stage{t}x" in RATES else 1.0',
}
SHORT = ("the end of its text", "a key made of it", "two that have to meet", "what numpy finds", "a text that is told")


def _cases(some: dict[str, str]) -> list[object]:
    return [pytest.param(by, id=name, marks=() if name in SHORT else pytest.mark.sweep) for name, by in some.items()]


def _told(by: str, file: Path) -> list[tuple[str, str]]:
    names = load(PROGRAM.replace("BY", by), file)
    found = pgk.diagnose(names["f"], *names["args"], 1)
    return [(f.code, f.frame.text if f.frame is not None else "") for f in found.failures]


@pytest.mark.parametrize("by", _cases(FOLLOWED | FURTHER))
def test_what_the_text_of_a_number_decides_is_told(by: str, tmp_path: Path) -> None:
    # GIVEN a step whose number argument decides by its text, or by what nobody can follow, and not for numbers near
    # WHEN it is asked, THEN it is told at that line that a graph keeps what this number decides
    assert _told(by, tmp_path / "program.py") == [("scalar-frozen", f"return (x + 1) * ({by})")]


@pytest.mark.parametrize("by", _cases(SOUND))
def test_a_text_that_decides_nothing_is_no_problem(by: str, tmp_path: Path) -> None:
    # GIVEN a step that makes a text of its number and computes nothing of it, WHEN it is asked, THEN nothing is told
    assert not _told(by, tmp_path / "program.py")
