"""Names and lists that a step gives a graph's memory ahead of its replays, for what is there then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE, Program, read
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "sixtieth_b_held.txt")
RUNNER = """
def gap(a, b):
    return (a - b).norm()
class Runner:
    def __init__(self):
        self.w = torch.rand(4, 4, device=device)
        self.x, self.y = torch.rand(4, device=device), torch.zeros(4, device=device)
        self.w @ self.x
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = torch.tanh(self.w @ self.x + self.y)
            self.x.copy_(self.out)
    def step(self, y):
        self.y.copy_(y)
STEP
runner, y = Runner(), torch.rand(4, device=device)
"""
HELD_OVER = {
    "a difference": ("old = self.x\nself.graph.replay()\nreturn self.x - old", ["old = self.x.clone()"]),
    "another look": (
        "old = self.x.view(2, 2)\nself.graph.replay()\nreturn (self.x.view(2, 2) - old).abs().max()",
        ["old = self.x.view(2, 2).clone()"],
    ),
    "several rounds": (
        "start = self.x\nfor _ in range(3):\n    self.graph.replay()\nreturn (self.x - start).norm()",
        ["start = self.x.clone()"],
    ),
    "each round": (
        (
            "last, gaps = self.x, []\nfor _ in range(3):\n    self.graph.replay()\n"
            "    gaps.append((self.x - last).norm())\n    last = self.x\nreturn torch.stack(gaps)"
        ),
        ["last, gaps = (self.x.clone(), [])", "last = self.x.clone()"],
    ),
    "a test": (
        (
            "for n in range(9):\n    old = self.x\n    self.graph.replay()\n    if (self.x - old).norm() < 1e-3:\n"
            "        break\nreturn self.x.clone()"
        ),
        ["old = self.x.clone()"],
    ),
    "a loss": ("old = self.x\nself.graph.replay()\nreturn F.mse_loss(old, self.x)", ["old = self.x.clone()"]),
    "a similarity": (
        "old = self.x\nself.graph.replay()\nreturn F.cosine_similarity(old, self.x, dim=0)",
        ["old = self.x.clone()"],
    ),
    "a helper": ("old = self.x\nself.graph.replay()\nreturn gap(self.x, old)", ["old = self.x.clone()"]),
    "two names": (
        "old = self.x\nself.graph.replay()\nnew = self.x\nreturn torch.dist(new, old)",
        ["old = self.x.clone()"],
    ),
    "a list": (
        (
            "rows = [self.x]\nfor _ in range(3):\n    self.graph.replay()\n    rows.append(self.x.clone())\n"
            "return torch.stack(rows)"
        ),
        ["rows = [self.x.clone()]"],
    ),
    "an empty list": (
        (
            "rows = []\nrows.append(self.x)\nfor _ in range(3):\n    self.graph.replay()\n"
            "    rows.append(self.x.clone())\nreturn torch.cat(rows)"
        ),
        ["rows.append(self.x.clone())"],
    ),
    "a list that is added to": (
        (
            "rows = [self.x]\nfor _ in range(3):\n    self.graph.replay()\n    rows += [self.out.clone()]\n"
            "return torch.stack(rows)"
        ),
        ["rows = [self.x.clone()]"],
    ),
    "a pair": ("x = self.x\nself.graph.replay()\nreturn x, self.x.clone()", ["x = self.x.clone()"]),
    "a dictionary": (
        "kept = self.x\nself.graph.replay()\nnew = self.x.clone()\nreturn {'from': kept, 'to': new}",
        ["kept = self.x.clone()"],
    ),
    "an attribute": (
        "self.last = self.x\nself.graph.replay()\nreturn y - self.last, self.x.clone()",
        ["self.last = self.x.clone()"],
    ),
    "arguments": ("x = self.x\nself.graph.replay()\nreturn torch.stack((x, self.x))", ["x = self.x.clone()"]),
}
RIGHT = {
    "a short name": "x = self.x\nself.graph.replay()\nreturn x * 2",
    "a square": "x = self.x\nself.graph.replay()\nreturn x * self.x + self.x",
    "a copy": "old = self.x.clone()\nself.graph.replay()\nreturn self.x - old",
    "an input": (
        "rows = [self.y]\nfor _ in range(3):\n    self.graph.replay()\n    rows.append(self.x.clone())\n"
        "return torch.stack(rows)"
    ),
    "buffers in a list": "rows = [self.x, self.y]\nrows[1].copy_(y)\nself.graph.replay()\nreturn rows[0].clone()",
    "what comes behind it": (
        "old = self.x.clone()\nself.graph.replay()\nnew = self.x\nreturn new - old, (new == self.x).all()"
    ),
    "a short name beside its copy": (
        "x, old = self.x, self.x.clone()\nself.graph.replay()\nreturn x - old, self.x - old"
    ),
    "what is filled": "last = self.y\nlast.copy_(y)\nself.graph.replay()\nreturn last.clone(), self.y.sum()",
    "its shape": "old = self.x\nself.graph.replay()\nreturn self.x.clone(), old.shape",
    "a copy behind it": "self.graph.replay()\nnew = self.x\nreturn new.sum(), self.x.clone()",
    "parts": "x = self.x\nself.graph.replay()\nreturn x[:2].clone(), self.x[2:].clone()",
    "sums": "x = self.x\nself.graph.replay()\nreturn x.sum() + y, self.x.clone()",
    "a list of copies": (
        "rows = [self.x.clone()]\nfor _ in range(3):\n    self.graph.replay()\n    rows.append(self.x.clone())\n"
        "return torch.stack(rows)"
    ),
}


def _found(step: str, tmp_path: Path) -> list[tuple[str, str]]:
    lines = "\n".join(f"        {line}" for line in step.splitlines())
    names = load(PRELUDE + RUNNER.replace("STEP", lines), tmp_path / "program.py")
    found = pgk.diagnose(names["runner"].step, names["y"]).failures
    return [(f.code, f.fix.partition("after ")[2].strip()) for f in found]


@pytest.mark.parametrize("case", HELD_OVER)
def test_what_is_held_over_a_replay_is_told_at_the_line_that_holds_it(case: str, tmp_path: Path) -> None:
    # GIVEN a step that takes a state ahead of its replays, and looks behind them at how far it has come
    step, lines = HELD_OVER[case]
    # WHEN it is diagnosed
    found = _found(step, tmp_path)
    # THEN the line that takes it needs a copy: what it has is written over
    assert found == [("output-alias", each) for each in lines]


@pytest.mark.parametrize("case", RIGHT)
def test_a_short_name_for_a_state_is_none(case: str, tmp_path: Path) -> None:
    # GIVEN a step that has another name for the state, or copies of it
    # WHEN it is diagnosed
    found = _found(RIGHT[case], tmp_path)
    # THEN nothing is told
    assert not found


@pytest.mark.parametrize("program", [pytest.param(each, id=each.title) for each in PROGRAMS])
def test_whole_programs_are_told_where_they_hold_it(program: Program, tmp_path: Path) -> None:
    # GIVEN a program whose object is asked through a function, and the same with a copy
    names, mended = load(program.broken, tmp_path / "program.py"), load(program.mended, tmp_path / "mended.py")
    # WHEN both are diagnosed
    found = pgk.diagnose(names[program.function], *names["args"]).failures
    # THEN the line is told, and nothing of the mended one
    lines = {(f.code, f.frame.line) for f in found if f.frame is not None}
    assert lines == {(each.codes[0], each.line) for each in program.expected}
    assert not pgk.diagnose(mended[program.function], *mended["args"]).failures
