"""State that no attribute and no container of the user's shows: it moves in each call, and is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import csv, ctypes, logging, multiprocessing, os, pathlib, secrets, sys, types, uuid, weakref
from collections import OrderedDict
import torch, paramgraph_kit as pgk
device = pgk.device()
class Kept: n = 0
MADE
def f(x):
    MOVES
    return x * (BY)
args = (torch.ones(4, device=device),)
"""
COUNTER, ROW, ODD = "host-counter", "scalar-frozen", "branch-frozen"
TOLD = {
    "behind a proxy": ("kept = Kept(); p = weakref.proxy(kept)", "p.n += 1", "2.0 if p.n > 30 else 1.0", COUNTER),
    "a view of bytes": ("v = memoryview(bytearray(4))", "v[0] += 1", "2.0 if v[0] > 30 else 1.0", COUNTER),
    "a number of C's": ("c = ctypes.c_int(0)", "c.value += 1", "2.0 if c.value > 30 else 1.0", COUNTER),
    "a shared number": ("c = multiprocessing.Value('i', 0)", "c.value += 1", "1.0 + c.value // 30", COUNTER),
    "an order": (
        "d = OrderedDict((n, 1.0 if n < 9 else 3.0) for n in range(10))",
        "d.move_to_end(next(iter(d)))",
        "d[next(iter(d))]",
        COUNTER,
    ),
    "the environment": (
        "os.environ['PGK_N'] = '0'",
        "os.environ['PGK_N'] = str(int(os.environ['PGK_N']) + 1)",
        "1.0 + int(os.environ['PGK_N']) // 30",
        COUNTER,
    ),
    "a module without a file": ("m = types.ModuleType('m'); m.n = 0", "m.n += 1", "1.0 + m.n // 30", COUNTER),
    "a module of Python's": ("sys.n_of_f = 0", "sys.n_of_f += 1", "1.0 + sys.n_of_f // 30", COUNTER),
    "an object of a library's": (
        "log = logging.getLogger('pgk-f'); log.n = 0",
        "log.n += 1",
        "1.0 + log.n // 30",
        COUNTER,
    ),
    "a tensor of the CPU": ("t = Kept(); t.k = torch.zeros(())", "t.k = t.k + 1", "2.0 if t.k > 30 else 1.0", COUNTER),
    "rows of a table": ("r = csv.reader(['1.0'] * 30 + ['2.0'] * 60)", "row = next(r)", "float(row[0])", ROW),
    "a file that may come": ("", "", "2.0 if os.path.exists('stop-of-f') else 1.0", ODD),
    "a name drawn by chance": ("", "", "2.0 if uuid.uuid4().int % 50 == 0 else 1.0", ODD),
    "a secret": ("", "", "2.0 if secrets.randbelow(50) == 0 else 1.0", ODD),
}
SHORT = ("a number of C's", "an object of a library's")
SOUND = {
    "a tensor of the CPU made anew": ("t = Kept(); t.k = torch.zeros(())", "k = t.k + 1; t.last = k", "2.0"),
    "read and never set": (
        "log = logging.getLogger('pgk-f'); c = ctypes.c_int(2); os.environ['PGK_M'] = '2'",
        "",
        "c.value * int(os.environ['PGK_M']) + log.level + sys.maxsize * 0",
    ),
    "set as it was": ("d = OrderedDict(a=1.0, b=2.0)", "d.move_to_end('b'); sys.n_of_f = 1", "d['a']"),
}


def _told(made: str, moves: str, by: str, file: Path) -> list[tuple[str, str]]:
    names = load(PROGRAM.replace("MADE", made).replace("MOVES", moves or "pass").replace("BY", by), file)
    return [(f.code, f.frame.text if f.frame else "") for f in pgk.diagnose(names["f"], *names["args"]).failures]


@pytest.mark.parametrize(
    ("made", "moves", "by", "code"),
    [pytest.param(*each, id=name, marks=() if name in SHORT else pytest.mark.sweep) for name, each in TOLD.items()],
)
def test_state_that_moves_out_of_sight_is_told(made: str, moves: str, by: str, code: str, tmp_path: Path) -> None:
    # GIVEN a step whose number comes of what moves where no attribute of the user's shows it, and late
    # WHEN it is asked, THEN the line that moves it, or that asks for it, is told
    assert (code, moves or f"return x * ({by})") in _told(made, moves, by, tmp_path / "program.py")


@pytest.mark.parametrize(("made", "moves", "by"), SOUND.values(), ids=SOUND)
def test_what_stays_as_it_is_out_of_sight_is_no_problem(made: str, moves: str, by: str, tmp_path: Path) -> None:
    # GIVEN the same that no call changes, WHEN it is asked, THEN nothing is told
    assert not _told(made, moves, by, tmp_path / "program.py")
