"""What lines between calls put into sets, dictionaries, lists in lists and arrays that a step reads on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import bisect, heapq, random
from collections import Counter, OrderedDict, defaultdict, deque
import numpy as np
import torch, paramgraph_kit as pgk
device = pgk.device()
class Row:
    def __init__(self): self.bad = [1]
class Server:
    def __init__(self):
        self.w = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(device)
        self.bias = torch.randn(32, 8, generator=torch.Generator().manual_seed(2)).to(device)
        self.held = HELD
        self.other = HELD
    def step(self, x):
        y = x @ self.w
        READ
        return y
    def halve(self, y, rows):
        for b, row in enumerate(rows):
            for t in row: y[b, t] = y[b, t] / 2
    def after(self, y):
        for b, t in enumerate(y.argmax(1).tolist()):
            SET
server = Server()
x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1)).to(device)
def main():
    for _ in range(6):
        y = server.step(x)
        LOOP
f = server.step
"""
KEYS = """for t in self.held: y[:, t] = y[:, t] / 2"""
ROWS = """for b, seen in enumerate(self.held):
            for t in seen: y[b, t] = y[b, t] / 2"""
VALUES = ROWS.replace("enumerate(self.held)", "self.held.items()")
BIAS = """for b in range(2): y[b] += self.bias[int(self.held[b])]"""
ARRAY = "np.zeros(2, dtype=np.int64)"
LISTS = "[{1}, {2}]"
TOLD = (  # what is held, how the step reads it, and a line between two calls
    ("{1: 0}", KEYS, "self.held[t] = b"),
    ("{1: 0}", KEYS, "self.held.update({t: b})"),
    ("{1: 0}", KEYS, "self.held |= {t: b}"),
    ("{1: 0}", KEYS, "self.held.setdefault(t, b)"),
    ("{1: 0}", KEYS, "self.held.update(dict.fromkeys([t]))"),
    ("OrderedDict({1: 0})", KEYS, "self.held[t] = b"),
    ("Counter([1])", KEYS, "self.held[t] += 1"),
    ("Counter([1])", KEYS, "self.held.update([t])"),
    ("defaultdict(int, {1: 1})", KEYS, "self.held[t] += 1"),
    ("{1: 0}", "y[:, :len(self.held)] *= 2", "self.held[t] = b"),
    ("{1}", KEYS, "self.held.update([t])"),
    ("{1, 2, 3}", KEYS, "self.held.difference_update([t])"),
    ("{1, 2, 3}", KEYS, "self.held -= {t}"),
    ("{1}", KEYS, "self.held ^= {t}"),
    ("[1]", KEYS, "bisect.insort(self.held, t)"),
    ("[1]", KEYS, "heapq.heappush(self.held, t)"),
    (LISTS, ROWS, "self.held[b].add(t)"),
    (LISTS, ROWS, "self.held[b].update([t])"),
    (
        LISTS,
        "for b, (seen, row) in enumerate(zip(self.held, y)):\n            for t in seen: row[t] = row[t] / 2",
        "self.held[b].add(t)",
    ),
    (
        LISTS,
        "for seen in reversed(self.held):\n            for t in seen: y[:, t] = y[:, t] / 2",
        "self.held[b].add(t)",
    ),
    (
        LISTS,
        "for b in range(len(self.held)):\n            for t in self.held[b]: y[b, t] = y[b, t] / 2",
        "self.held[b].add(t)",
    ),
    (LISTS, "self.halve(y, self.held)", "self.held[b].add(t)"),
    (
        "[[[1]], [[2]]]",
        "for rows in self.held:\n            for row in rows:\n                for t in row: y[:, t] = y[:, t] / 2",
        "self.held[b][0].append(t)",
    ),
    ("{0: [1], 1: [2]}", VALUES, "self.held[b].append(t)"),
    ("{0: {1}, 1: {2}}", VALUES, "self.held.setdefault(b, set()).add(t)"),
    ("defaultdict(set, {0: {1}, 1: {2}})", VALUES, "self.held[b].add(t)"),
    (
        "[Row(), Row()]",
        "for b, row in enumerate(self.held):\n            for t in row.bad: y[b, t] = y[b, t] / 2",
        "self.held[b].bad.append(t)",
    ),
    (ARRAY, BIAS, "self.held += 1"),
    (ARRAY, BIAS, "self.held[b] = t"),
    (ARRAY, BIAS, "self.held[b] += 1"),
    (ARRAY, BIAS, "np.add.at(self.held, [b], 1)"),
    (ARRAY, BIAS, "self.held.fill(t)"),
    (ARRAY, BIAS, "np.copyto(self.held, t)"),
    (ARRAY, BIAS, "np.add(self.held, 1, out=self.held)"),
    (
        "{'at': np.zeros(2, dtype=np.int64)}",
        "for b in range(2): y[b] += self.bias[int(self.held['at'][b])]",
        "self.held['at'] += 1",
    ),
    ("np.zeros(2)", "y = y * (2.0 + self.held[0])", "self.held += 0.5"),
    ("np.ones(2, dtype=bool)", "if self.held[0]: y = y * 2", "self.held[b] = t > 3"),
)
RIGHT = (
    ("{1: 0}", KEYS, "self.other[t] = b"),
    ("{1: 0}", KEYS, "for k in self.held: self.held[k] = b"),
    ("{1: 0}", KEYS, "for k, v in self.held.items(): self.held[k] = v + 1"),
    ("{1: 0}", KEYS, "if t in self.held: self.held[t] = b"),
    ("{1: 0}", KEYS, "self.held[1] = b"),
    ("{0: 0, 1: 0}", KEYS, "self.held[b] = t"),
    ("{1: 0}", KEYS, "self.held[1] += 1"),
    (LISTS, ROWS, "self.other[b].add(t)"),
    ("[Row(), Row()]", "y = y * len(self.held)", "self.held[b].bad.append(t)"),
    ("{0: [1], 1: [2]}", KEYS, "self.held[b].append(t)"),
    (ARRAY, BIAS, "self.other += 1"),
    (ARRAY, BIAS, "self.held = self.held"),
    (ARRAY, BIAS, "self.held[b] = 0"),
    (ARRAY, BIAS, "self.held.fill(0)"),
    (ARRAY, "y = y * len(self.held)", "self.held += 1"),
)
IN_LOOP = (
    ("{1}", KEYS, "server.held.update(y.argmax(1).tolist())"),
    ("{1: 0}", KEYS, "server.held[int(y.argmax())] = 0"),
    (LISTS, ROWS, "for row, t in zip(server.held, y.argmax(1).tolist()): row.add(t)"),
    (LISTS, ROWS, "server.held[0].update(y.argmax(1).tolist())"),
    (ARRAY, BIAS, "server.held += 1"),
    (ARRAY, BIAS, "held = server.held; held[:] = y.argmax(1).cpu().numpy()"),
)


def _diagnosed(held: str, read: str, inside: str, loop: str, at: Path) -> pgk.Diagnosis:
    text = PROGRAM.replace("HELD", held).replace("READ", read).replace("SET", inside).replace("LOOP", loop)
    return pgk.diagnose(load(text, at / "program.py")["f"], load(text, at / "inputs.py")["x"])


@pytest.mark.parametrize(("held", "read", "inside"), TOLD)
def test_what_a_method_between_calls_puts_there_is_told(held: str, read: str, inside: str, tmp_path: Path) -> None:
    # GIVEN a step that reads a holder of the host's, and a method behind it that changes that
    diagnosis = _diagnosed(held, read, inside, "server.after(y)", tmp_path)
    # WHEN it is diagnosed THEN it is told with the line
    told = [f for f in diagnosis if " is set between calls, at" in f.message]
    assert told, str(diagnosis)
    assert all(inside in f.message for f in told), str(diagnosis)


@pytest.mark.parametrize(("held", "read", "inside"), IN_LOOP)
def test_what_the_loop_puts_there_is_told(held: str, read: str, inside: str, tmp_path: Path) -> None:
    # GIVEN the same in the loop itself WHEN it is diagnosed THEN it is told with the line
    diagnosis = _diagnosed(held, read, "pass", inside, tmp_path)
    assert any(" is set between calls, at" in f.message for f in diagnosis), str(diagnosis)


@pytest.mark.parametrize(("held", "read", "inside"), RIGHT)
def test_what_a_step_does_not_read_of_it_is_not_told(held: str, read: str, inside: str, tmp_path: Path) -> None:
    # GIVEN a line that changes another holder, or what the step does not read of it WHEN diagnosed THEN no problem
    diagnosis = _diagnosed(held, read, inside, "server.after(y)", tmp_path)
    assert not diagnosis, str(diagnosis)
