"""Stages whose graphs read what the graph of the stage before has left, and are given something else."""

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
STAGES = """
class Stage:
    def __init__(self, fn, x):
        fn(x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = fn(x)
    def __call__(self):
        self.graph.replay()
        return self.out
class Two:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.v = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
        self.x = torch.zeros(2, 4, device=device)
        self.first = Stage(lambda x: torch.relu(x @ self.w), self.x)
        self.second = Stage(lambda h: torch.tanh(h @ self.v), self.first.out)
    def encode(self, x):
        self.x.copy_(x)
        return self.first().clone()
    def decode(self, h):
        return self.second().clone()
def main():
    two = Two()
    xs = [torch.full((2, 4), 0.1 * i, device=device) for i in range(5)]
    hidden = [two.encode(x) for x in xs]
    return [two.decode(h).cpu() for h in hidden]
"""
PAIRED = STAGES.replace("    hidden = [two.encode(x) for x in xs]\n", "").replace("(h).cpu() for h in hidden", "X")
PAIRED = PAIRED.replace("X", "(two.encode(x)).cpu() for x in xs")
WORDS = "self.second.x_in.copy_(h) ahead of this line, and ahead of the capture at line "


def told(text: str, file: Path) -> dict[str, str]:
    """What to write, by the line that is told."""
    with quiet():
        found = pgk.diagnose(load(PRELUDE + text, file)["main"]).failures
    return {f.frame.text: f.fix.partition("after   ")[2] for f in found if f.frame is not None}


def test_an_argument_that_is_not_what_the_stage_before_has_left_is_told(tmp_path: Path) -> None:
    # GIVEN a program that runs all first stages, and then all second ones, which are given what those gave
    found = told(STAGES, tmp_path / "program.py")
    # WHEN it is diagnosed THEN that argument, which no line reads, is told where the stage is called
    assert list(found) == ["return self.second().clone()"]
    assert found["return self.second().clone()"].startswith(WORDS)
    assert found["return self.second().clone()"].endswith("`x = self.x_in = x.clone()`")


def test_its_words_give_the_numbers_of_eager_code(tmp_path: Path) -> None:
    # GIVEN the same with the words followed
    text = STAGES.replace(
        "        return self.second()", "        self.second.x_in.copy_(h)\n        return self.second()"
    )
    text = text.replace("        with cuda", "        x = self.x_in = x.clone()\n        with cuda")
    text = text.replace("self.x.copy_(x)", "self.first.x_in.copy_(x)")
    eager = STAGES.replace("self.first().clone()", "torch.relu(x @ self.w)")
    eager = eager.replace("self.second().clone()", "torch.tanh(h @ self.v)")
    # WHEN both run THEN they agree
    mended, own = (load(PRELUDE + each, tmp_path / f"{n}.py")["main"]() for n, each in enumerate((text, eager)))
    assert all(torch.allclose(a, b) for a, b in zip(mended, own, strict=True))


def test_stages_that_run_one_behind_the_other_are_no_problem(tmp_path: Path) -> None:
    # GIVEN the same, where each second stage comes right behind its first one
    # WHEN it is diagnosed THEN nothing is told
    assert told(PAIRED, tmp_path / "program.py") == {}
