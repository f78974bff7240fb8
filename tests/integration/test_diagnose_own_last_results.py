"""Lists of the last few results, made anew each time: ``self.ets = self.ets[-3:] + [eps]``."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.programs.running import load

PROGRAM = """import torch
from collections import deque
import paramgraph_kit as pgk
device = pgk.device()
class Graphed:
    def __init__(self):
        self.graph, self.x = None, torch.ones(4, device=device)
    def __call__(self, x):
        if self.graph is None:
            self.graph = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(self.graph):
                self.out = self.x.sin()
        self.x.copy_(x)
        self.graph.replay()
        return self.out
def taken(old, new):
    made = list(old)
    made += [new]
    return made[-4:]
class Scheduler:
    def __init__(self):
        self.ets = []
    def step(self, eps, x):
        KEEPS
        e = self.ets[-1] if len(self.ets) == 1 else (3 * self.ets[-1] - self.ets[-2]) / 2
        return x - 0.1 * e
def main():
    denoise, scheduler, x = Graphed(), Scheduler(), torch.ones(4, device=device)
    for _ in range(4):
        x = scheduler.step(denoise(x), x)
    return x.cpu()
"""
WRONG = {
    "of the last, and one more": ("self.ets = self.ets[-3:] + [eps]", "self.ets = self.ets[-3:] + [eps.clone()]"),
    "the new one first": ("self.ets = ([eps] + self.ets[::-1])[:4][::-1]", ""),
    "all, cut": ("self.ets = (self.ets + [eps])[-4:]", "self.ets = (self.ets + [eps.clone()])[-4:]"),
    "a queue": ("self.ets = deque([*self.ets, eps], maxlen=4)", "self.ets = deque([*self.ets, eps.clone()], maxlen=4)"),
    "by a helper": ("self.ets = taken(self.ets, eps)", ""),
}
SOUND = ["self.ets = self.ets[-3:] + [eps.clone()]", "self.ets = self.ets[-3:] + [eps * 1]", "self.ets = [eps]"]


@pytest.mark.parametrize("name", WRONG)
def test_results_in_a_list_that_is_made_anew_are_told(name: str, tmp_path: Path) -> None:
    # GIVEN a sampler that keeps a graph's last results in a list, which is another one each time
    line, mended = WRONG[name]
    main = load(PROGRAM.replace("KEEPS", line), tmp_path / "program.py")["main"]

    # WHEN it is diagnosed
    found = pgk.diagnose(main)

    # THEN the line that keeps them is told, as the next replay writes over each
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == [("output-alias", line)]
    assert mended in found.failures[0].fix


@pytest.mark.parametrize("line", SOUND)
def test_copies_in_such_a_list_are_not_told(line: str, tmp_path: Path) -> None:
    # GIVEN the same with copies, or with the last alone WHEN it is diagnosed THEN there is no problem
    main = load(PROGRAM.replace("KEEPS", line), tmp_path / "program.py")["main"]
    assert not pgk.diagnose(main).failures
