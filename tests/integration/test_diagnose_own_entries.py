"""Lists and dictionaries that a graph of the program's own reads: one entry, all of them, or how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """from collections import deque
def first(held, x): return x * held[0]
def doubled(held, x): return x * sum(2 * each for each in held)
def scaled(cfg, x): return x * cfg["scale"]
def by_name(cfg, name, x): return x * cfg[name]
class Runner:
    def __init__(self):
        self.net, self.held = nn.Linear(6, 3).to(device), HELD
        self.x = torch.zeros(4, 6, device=device)
        self.body()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.body()
    def body(self):
        y = self.net(self.x)
        BODY
        return y
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        STEP
        return self.out.clone()
def main():
    r = Runner()
    for k in range(4):
        r.step(torch.randn(4, 6, device=device))
        LOOP
r = Runner()
f, args = r.step, (torch.randn(4, 6, device=device),)
"""
APPENDS, ADDS = "self.held.append(0.1)", "r.held.append(0.1 * k)"
WRONG = [
    ("[0.5]", "y = y + self.held[-1]", APPENDS, "pass", "scalar-frozen", "`self.held_1_in.fill_(self.held[-1])`"),
    ("[0.5]", "y = y + self.held[-1]", "pass", ADDS, "scalar-frozen", "`self.held_1_in.fill_(self.held[-1])`"),
    ("[0.5]", "y = y + sum(self.held)", APPENDS, "pass", "scalar-frozen", "`self.held_in.fill_(sum(self.held))`"),
    ("[0.5]", "for b in self.held: y = y + b", APPENDS, "pass", "scalar-frozen", "graphs[tuple(self.held)]"),
    ("[0.5]", "y = doubled(self.held, y)", "pass", ADDS, "scalar-frozen", "graphs[tuple(self.held)]"),
    ("[]", "y = 2 * y if self.held else y", APPENDS, "pass", "branch-frozen", "graphs[bool(self.held)]"),
    ("deque([0.5])", "y = y + self.held[-1]", APPENDS, "pass", "scalar-frozen", ".fill_(self.held[-1])`"),
    (
        *("{'a': 0.5}", "y = y + sum(self.held.values())", "self.held['a'] += 0.1", "pass", "scalar-frozen"),
        ".fill_(sum(self.held.values()))`",
    ),
    (
        "{'a': 0.5}",
        "y = y * self.held.get('a', 1.0)",
        "pass",
        "r.held['a'] = 0.1 * k",
        "scalar-frozen",
        "graphs[self.held['a']]",
    ),
    (
        *("{'a': 0.5, 'n': 0}", "key = 'a'; y = y * self.held[key]", "self.held['a'] += 0.1", "pass"),
        *("scalar-frozen", ".fill_(self.held['a'])`"),
    ),
    (
        *("{'a': 0.5, 'b': 1.0, 'n': 0}", "for key in ('a', 'b'): y = y * self.held[key]", "pass"),
        *("r.held['b'] = 0.1 * k", "scalar-frozen", "graphs[self.held['b']]"),
    ),
    (
        *("{'a': 0.5, 'n': 0}", "y = by_name(self.held, 'a', y)", "self.held['a'] += 0.1", "pass"),
        *("scalar-frozen", ".fill_("),
    ),
    (
        *("{'a': 0.5, 'b': 0.1}", "y = y * self.held[min(self.held)]", "self.held['a'] += 0.1", "pass"),
        *("scalar-frozen", ".fill_("),
    ),
    (
        *("{'n': 0}", "y = y * self.held.get('a', 1.0)", "self.held['a'] = 0.1", "pass", "scalar-frozen"),
        "graphs[self.held.get('a', 1.0)]",
    ),
    (
        *("{'n': 0}", "y = 2 * y if 'a' in self.held else y", "self.held['a'] = 1", "pass", "branch-frozen"),
        "`if ('a' in self.held) not in graphs:`",
    ),
    (
        *("{}", "y = y * getattr(self, 'gain', 1.0)", "self.gain = 0.1", "pass", "scalar-frozen"),
        "graphs[getattr(self, 'gain', 1.0)]",
    ),
    (
        *("{'a': 0.5}", "for k, v in self.held.items(): y = y + v", "self.held['a'] += 0.1", "pass", "scalar-frozen"),
        "for k, v in self.held.items(): self.held_in[k].fill_(v)",
    ),
    (
        *("[torch.zeros(3, device=device)]", "y = y + self.held[-1]", "self.held.append(x[0, :3].clone())", "pass"),
        *("stale-input", "`self.held_1_in.copy_(self.held[-1])`"),
    ),
    (
        *("[nn.Linear(3, 3).to(device)]", "for each in self.held: y = each(y)", "pass"),
        *("r.held.append(nn.Linear(3, 3).to(device))", "scalar-frozen", "graphs[tuple(self.held)]"),
    ),
]
RIGHT = [
    ("[0.5]", "y = y + self.held[0]", APPENDS, ADDS),
    ("[0.5]", "y = first(self.held, y)", APPENDS, ADDS),
    ("[0.5]", "y = 2 * y if self.held else y", APPENDS, "pass"),
    ("[0.5]", "h = self.held; y = y * h[0]", APPENDS, ADDS),
    ("[0.5]", "assert len(self.held) < 100", APPENDS, "pass"),
    ("[0.5, 0.4]", "y = y * sum(self.held[:2])", APPENDS, "pass"),
    ("deque([0.5], maxlen=2)", "self.held.append(0.1)", APPENDS, "pass"),
    ("[]", "self.held = []; self.held.append(y); y = torch.stack(self.held).sum(0)", "self.held.clear()", "pass"),
    ("{'scale': 0.5, 'n': 0}", "y = scaled(self.held, y)", "self.held['n'] += 1", "r.held['m'] = k"),
    ("{'a': 0.5, 'n': 0}", "y = y * self.held['a']; self.held.get('n')", "pass", "r.held['m'] = k"),
    ("{'a': 0.5, 'n': 0}", "key = 'a'; y = y * self.held[key]", "self.held['n'] += 1", "r.held['m'] = k"),
    ("{'a': 0.5, 'b': 0.1}", "for key in ('a', 'c'): y = y * self.held.get(key, 1.0)", "self.held['b'] += 1", "pass"),
    ("{'a': 0.5, 'b': 0.1}", "y = by_name(self.held, 'a', y)", "self.held['b'] += 1", "pass"),
    ("{'a': 0.5}", "y = 2 * y if 'a' in self.held else y", "self.held['a'] += 1", "r.held['b'] = k"),
    ("{'n': 0}", "y = y * self.held.get('a', 1.0)", "self.held['n'] += 1", "r.held['b'] = k"),
]


def program(held: str, body: str, step: str, loop: str) -> str:
    parts = {"HELD": held, "BODY": body, "STEP": step, "LOOP": loop}
    text = PROGRAM
    for name, part in parts.items():
        text = text.replace(name, part)
    return PRELUDE + text


@pytest.mark.parametrize(("held", "body", "step", "loop", "code", "fix"), WRONG)
def test_entries_that_a_graph_reads_are_told_where_a_line_adds_or_sets_them(
    held: str, body: str, step: str, loop: str, code: str, fix: str, tmp_path: Path
) -> None:
    # GIVEN a step that replays a graph of its own, which reads entries that this step, or a loop, changes
    names = load(program(held, body, step, loop), tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN it is told at that line, with what to write so that it reaches the graph
    assert [f.code for f in found] == [code], str(found)
    assert found.failures[0].frame is not None
    assert (loop if step == "pass" else step) in found.failures[0].frame.text, str(found)
    assert fix in found.failures[0].fix, str(found)


@pytest.mark.parametrize(("held", "body", "step", "loop"), RIGHT)
def test_entries_that_change_nothing_a_graph_reads_are_right(
    held: str, body: str, step: str, loop: str, tmp_path: Path
) -> None:
    # GIVEN the same where the graph reads others than those that change, or only asks whether there are any
    names = load(program(held, body, step, loop), tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert not found, str(found)
