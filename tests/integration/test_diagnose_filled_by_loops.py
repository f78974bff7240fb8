"""Lists and dictionaries that a step reads, and that lines around it fill, or take from, between its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """from collections import deque
import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
class Step:
    def __init__(self):
        self.net = nn.Linear(6, 3).to(device)
        self.held = HELD
        self.log = []
    def note(self, value):
        self.held.append(value)
    def run(self, x):
        READ
def twice(x): return x * 2
def main(n=4):
    step = Step()
    AHEAD
    for k in range(n):
        out = step.run(torch.randn(4, 6, device=device))
        INSIDE
step = Step()
f, inputs = step.run, (torch.ones(4, 6, device=device),)
"""
ROWS, TENSORS = "[[1.0, 0.5]]", "[torch.ones(3, device=device) for _ in range(2)]"
WRONG = {
    "a number in the last row": (ROWS, "return self.net(x) * self.held[-1][0]", "step.held.append([1 / (k + 1), 2.0])"),
    "a mean of a window": (
        "deque([1.0], 3)",
        "return self.net(x) / sum(self.held)",
        "step.note(out.shape[0] / (k + 3))",
    ),
    "by another name": ("[0.5]", "return self.net(x) + max(self.held)", "held = step.held; held += [0.1 * k, 2.5]"),
    "an entry of a computed key": (
        "{0: 1.0, 1: 0.5}",
        "return sum(w * self.net(x) for w in self.held.values())",
        "step.held[k % 2] = 1 / (k + 1)",
    ),
    "a queue of tensors": (
        TENSORS,
        "return self.net(x) @ torch.stack(self.held).mean(0)",
        "step.held.append(out[0]); del step.held[0]",
    ),
    "another list of tensors": (
        TENSORS,
        "return self.net(x) @ torch.stack(self.held).mean(0)",
        "step.held = step.held[1:] + [out[0]]",
    ),
    "a list that grows": (
        TENSORS,
        "return torch.cat([self.net(x).mean(0), *self.held])",
        "if k < 2: step.held.extend([out[0]])",
    ),
    "functions that come later": (
        "[]",
        "for each in self.held: x = each(x)\n        return self.net(x)",
        "if k == 1: step.held.append(twice)",
    ),
    "entries that are taken": (
        "[0, 1, 2]",
        "out = self.net(x)\n        return sum(out[i] for i in self.held)",
        "step.held.pop()",
    ),
}
RIGHT = {
    "the first stays": (ROWS, "return self.net(x) * self.held[0][0]", "step.held.append([1 / (k + 1), 2.0])", "pass"),
    "filled ahead": ("[1.0]", "return self.net(x) * sum(self.held)", "step.log.append(k)", "step.held.append(2.0)"),
    "empty each time": ("[]", "for e in self.held: x = e(x)\n        return self.net(x)", "step.held.clear()", "pass"),
    "its own log": (
        "[]",
        "if len(self.held) > 9: print('long')\n        return self.net(x)",
        "step.held.append(k)",
        "pass",
    ),
    "the same again": ("{'a': 1.0}", "return self.net(x) * sum(self.held.values())", "step.held['a'] = 1.0", "pass"),
    "another's": ("[1.0]", "return self.net(x) * sum(self.held)", "mine.append(k); del mine[0]", "mine = [1.0]"),
    "written in place": (
        TENSORS,
        "return self.net(x) @ torch.stack(self.held).mean(0)",
        "step.held[k % 2].copy_(out[0])",
        "pass",
    ),
}


def _program(held: str, read: str, inside: str, ahead: str = "pass") -> str:
    return PROGRAM.replace("HELD", held).replace("READ", read).replace("INSIDE", inside).replace("AHEAD", ahead)


@pytest.mark.parametrize("name", WRONG)
def test_a_list_that_a_loop_fills_and_the_step_reads_is_told_with_the_line_that_fills_it(
    name: str, tmp_path: Path
) -> None:
    # GIVEN a step that reads a list or a dictionary, and a loop that gives it other entries between two calls
    names = load(_program(*WRONG[name]), tmp_path / "program.py")
    then = list(names["step"].held)
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN the line that reads it is told, with the line that fills it and what to do there
    assert len(diagnosis.failures) == 1, str(diagnosis)
    told = diagnosis.failures[0]
    assert "self.held is set between calls, at" in told.message, str(diagnosis)
    assert "capture again behind" in told.fix, str(diagnosis)
    # THEN the list has what it had
    assert all(a is b for a, b in zip(names["step"].held, then, strict=True))


def test_a_list_that_is_empty_and_gets_what_nobody_knows_is_noted(tmp_path: Path) -> None:
    # GIVEN a step that reads a list which has nothing yet, and gets the results of the step
    text = _program("[]", "return self.net(x) + sum(self.held)", "step.held.append(out.mean().item())")
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN there is no problem, and it says that it has not seen what the graph keeps
    assert not diagnosis, str(diagnosis)
    assert any("what a graph keeps of self.held was not seen" in note for note in diagnosis.notes), str(diagnosis)


@pytest.mark.parametrize("name", RIGHT)
def test_a_list_whose_entries_do_not_reach_the_device_is_not_told(name: str, tmp_path: Path) -> None:
    # GIVEN the same with entries that no operation of the step depends on WHEN it is diagnosed THEN there is no problem
    names = load(_program(*RIGHT[name]), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)
