"""Loops that replay a graph for each entry of something, of which the capture was given one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

SAMPLER = """
class Sampler:
    def __init__(self):
        self.net, self.graph = nn.Linear(4, 4).to(device), None
        self.ts = {ts}
        self.t = torch.zeros((), device=device)
    def step(self, x, t, scale=1.0):
        return x - 0.01 * scale * t * self.net(x)
    @torch.no_grad()
    def capture(self, x):
        self.x = x.clone()
        self.step(self.x, {given})
        cuda.synchronize()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.step(self.x, {given})
    def once(self):
        self.graph.replay()
        self.x.copy_(self.out)
    @torch.no_grad()
    def sample(self, x):
        if self.graph is None:
            self.capture(x)
        self.x.copy_(x)
        for {head}:
            {body}
        return self.x.clone()
sampler = Sampler()
def main():
    torch.manual_seed(0)
    return [sampler.sample(torch.randn(3, 4, device=device)) for _ in range(3)]
"""
REPLAYED = "self.graph.replay(); self.x.copy_(self.out)"
WRONG = {
    "an entry of a list": ("[9, 5, 1]", "self.ts[0]", "t in self.ts", REPLAYED, "`t` for `self.ts[0]`"),
    "an entry of a tensor": (
        *("torch.linspace(1, 0, 5, device=device)", "self.ts[0]", "n, t in enumerate(self.ts)"),
        *(f"print('round', n, t.shape); {REPLAYED}", "`t` for `self.ts[0]`"),
    ),
    "two that go together": (
        *("[9, 5, 1]", "self.ts[0], scale=self.ts[1]", "t, scale in zip(self.ts, self.ts[1:])", REPLAYED),
        "`(t, scale)`",
    ),
    "a number by its name": ("[9, 5, 1]", "9", "t in reversed(range(10))", REPLAYED, "`t` for `9`"),
    "by a method that replays": ("[9, 5, 1]", "self.ts[0]", "t in self.ts", "self.once()", "`t` for `self.ts[0]`"),
}
RIGHT = {
    "each round fills what the graph reads": (
        *("[9, 5, 1]", "self.t", "t in self.ts", f"self.t.fill_(t); {REPLAYED}"),
    ),
    "a number that is the same in all rounds": ("[9, 5, 1]", "self.ts[0]", "_ in range(3)", REPLAYED),
    "rounds that are only counted": ("[9, 5, 1]", "9", "i in range(3)", REPLAYED),
}


@pytest.mark.parametrize(("ts", "given", "head", "body", "wanted"), WRONG.values(), ids=WRONG)
def test_what_a_loop_goes_through_in_vain_is_told_at_the_capture(
    ts: str, given: str, head: str, body: str, wanted: str, tmp_path: Path
) -> None:
    # GIVEN a loop that replays a graph for each entry, of which the capture was given the first
    program = PRELUDE + SAMPLER.format(ts=ts, given=given, head=head, body=body)
    # WHEN the program is diagnosed
    (found,) = pgk.diagnose(load(program, tmp_path / "program.py")["main"]).failures
    # THEN it is told where that is given, with a graph for each
    assert found.code == "scalar-frozen"
    assert found.frame is not None
    assert found.frame.text.startswith("self.out = self.step(")
    assert wanted in found.fix


@pytest.mark.parametrize(("ts", "given", "head", "body"), RIGHT.values(), ids=RIGHT)
def test_a_loop_whose_rounds_are_alike_has_no_problem(
    ts: str, given: str, head: str, body: str, tmp_path: Path
) -> None:
    # GIVEN a loop that tells its graph what each round has, or has nothing to tell WHEN diagnosed THEN nothing is found
    program = PRELUDE + SAMPLER.format(ts=ts, given=given, head=head, body=body)
    assert pgk.diagnose(load(program, tmp_path / "program.py")["main"]).failures == ()


def test_a_graph_for_each_entry_is_right(tmp_path: Path) -> None:
    # GIVEN rounds that capture where there is no graph of theirs yet
    text = """
net, ts, graphs, x = nn.Linear(4, 4).to(device), [9, 5, 1], {}, torch.zeros(3, 4, device=device)
def step(x, t):
    return x - 0.01 * t * net(x)
@torch.no_grad()
def sample(noise):
    x.copy_(noise)
    for t in ts:
        if t not in graphs:
            step(x, t)
            cuda.synchronize()
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                out = step(x, t)
            graphs[t] = g, out
        g, out = graphs[t]
        g.replay()
        x.copy_(out)
    return x.clone()
def main():
    return [sample(torch.randn(3, 4, device=device)) for _ in range(3)]
"""
    # WHEN diagnosed THEN nothing is found
    assert pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"]).failures == ()
