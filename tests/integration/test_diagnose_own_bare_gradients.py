"""Gradients that a line behind a capture sets to None: the graph writes where no parameter looks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Accum:
    def __init__(self, every=2):
        torch.manual_seed(0)
        self.net = nn.Linear(8, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.every, self.count, self.x = every, 0, torch.zeros(4, 8, device=device)
        for p in self.net.parameters():
            p.grad = torch.zeros_like(p)
        self.work()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.work()
        BEHIND
    def work(self):
        loss = self.net(self.x).square().mean() / self.every
        loss.backward()
        return loss.detach()
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.count += 1
        if self.count % self.every == 0:
            self.opt.step()
            ZERO
        return self.loss.clone()
def main():
    accum, losses = Accum(), []
    for n in range(6):
        losses.append(accum.step(torch.full((4, 8), float(n), device=device)))
    return torch.stack(losses)
"""
KEEP, NULL = "self.opt.zero_grad(set_to_none=False)", "self.opt.zero_grad()"
TEXT = "it sets gradients to None that the graph goes on writing to"


def _lines(behind: str, zero: str) -> list[str]:
    return PROGRAM.replace("BEHIND", behind).replace("ZERO", zero).splitlines()


@pytest.mark.parametrize(("behind", "zero"), [(NULL, NULL), (NULL, KEEP), (KEEP, NULL)])
def test_each_line_that_sets_them_to_none_is_told_of_the_step_alone_too(behind: str, zero: str, tmp_path: Path) -> None:
    # GIVEN a graph that adds to gradients, and lines behind its capture that set them to None
    names = run("\n".join(_lines(behind, zero)), tmp_path)
    # WHEN its step is asked alone, in which no call comes to the optimizer, and its program
    step = pgk.diagnose(names["Accum"]().step, torch.ones(4, 8, device=names["device"])).failures
    main = pgk.diagnose(names["main"]).failures
    # THEN each of these lines is told, and nothing else, with words that keep the gradients
    wrong = [behind, zero].count(NULL)
    assert len({f.frame for f in step}) == len(step) == wrong
    assert {(f.code, f.message, f.fix) for f in step} == {
        ("gradients-rebound", TEXT, f"before  {NULL}\nafter   {KEEP}")
    }
    assert {f.frame for f in main} == {f.frame for f in step}


def test_a_step_that_finds_no_gradient_is_told_where_no_line_tells_who_set_them_so(tmp_path: Path) -> None:
    # GIVEN the same with lines that are right, whose gradients its caller sets to None
    names = run("\n".join(_lines(KEEP, KEEP)), tmp_path)
    accum = names["Accum"](every=1)
    accum.opt.zero_grad()
    # WHEN its step is asked THEN the step of the optimizer is told
    found = pgk.diagnose(accum.step, torch.ones(4, 8, device=names["device"])).failures
    assert [(f.code, f.frame.text) for f in found if f.frame] == [("gradients-rebound", "self.opt.step()")]


def test_gradients_that_stay_are_right(tmp_path: Path) -> None:
    # GIVEN the same WHEN its step, or its program, is asked THEN nothing is told
    names = run("\n".join(_lines(KEEP, KEEP)), tmp_path)
    assert not pgk.diagnose(names["Accum"]().step, torch.ones(4, 8, device=names["device"])).failures
    assert not pgk.diagnose(names["main"]).failures
