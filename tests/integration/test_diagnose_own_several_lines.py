"""Captures of several statements: what they exchange is told once, at its line, and notes name the program's lines."""

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
PROGRAM = """
class Sampler:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.h = torch.randn(4, device=device), torch.zeros(2, 4, device=device)
        self.x, self.heat, self.graph = torch.zeros(2, 4, device=device), 1.0, None
    def capture(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            h = torch.tanh(self.x + self.h * self.w)
            self.p = (h / self.heat).softmax(-1)
            KEEP
    def step(self, x):
        if self.graph is None: self.capture()
        self.x.copy_(x)
        MOVE
        self.graph.replay()
        return self.p.clone()
def main():
    sampler = Sampler()
    return [sampler.step(torch.randn(2, 4)) for _ in range(4)]
"""
EXCHANGED, COOLED = "self.h = h", "self.heat = max(0.1, self.heat * 0.9)"


@pytest.mark.parametrize(
    ("keep", "move", "told"),
    [
        (EXCHANGED, COOLED, [EXCHANGED, COOLED]),
        pytest.param("self.h.copy_(h)", "pass", [], marks=pytest.mark.sweep),
        pytest.param("self.h.copy_(h)", COOLED, [COOLED], marks=pytest.mark.sweep),
    ],
)
def test_each_line_is_told_once(keep: str, move: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN a capture of three statements, of which the last gives the state another tensor, and a number that moves
    # between replays
    text = PRELUDE + PROGRAM.replace("KEEP", keep).replace("MOVE", move)
    # WHEN the program is diagnosed
    with quiet():
        found = pgk.diagnose(load(text, tmp_path / "program.py")["main"])
    # THEN these two lines are told, none again where it is read, in a note or by a line that the file does not have
    assert [f.frame.text for f in found.failures if f.frame] == told
    assert not any("captured at line" in each or "is frozen at" in each for each in (str(found), *found.notes))


UNREAD = """
class Average:
    def __init__(self):
        self.x, self.kept, self.n = torch.zeros(3, device=device), torch.zeros(3, device=device), 0
        self.rate_in = torch.full((), 0.1, device=device)
        self.graph = None
    def body(self):
        rate = min(0.9, (1 + self.n) / (10 + self.n))
        self.kept.lerp_(self.x, RATE)
    def step(self, x):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.body()
        self.x.copy_(x)
        self.rate_in.fill_(min(0.9, (1 + self.n) / (10 + self.n)))
        self.graph.replay()
        self.n += 1
        return self.kept.clone()
def main():
    average = Average()
    return [average.step(torch.randn(3)) for _ in range(4)]
"""


@pytest.mark.parametrize(("rate", "told"), [("self.rate_in", []), ("rate", ["self.n += 1"])])
def test_a_number_for_a_variable_that_nothing_reads_is_no_problem(rate: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN an average whose rate is read from a tensor by now, with the line left that computed it, or is read there
    # WHEN the program is diagnosed
    with quiet():
        found = pgk.diagnose(load(PRELUDE + UNREAD.replace("RATE", rate), tmp_path / "program.py")["main"])
    # THEN the counter is told only where the graph has it
    assert [f.frame.text for f in found.failures if f.frame] == told


NAMED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.graph, self.scale = torch.randn(5, device=device), None, 1.0
    def body(self):
        return self.x * self.w * self.scale
    def NAME(self, x):
        if self.graph is None:
            self.x, self.graph = x.clone(), cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.body()
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
def main():
    net, out = Net(), []
    for n in range(6):
        out.append(net.NAME(torch.randn(2, 5, device=device)))
        net.scale *= 0.9
    return out
"""


@pytest.mark.parametrize("name", ["forward", pytest.param("step", marks=pytest.mark.sweep)])
def test_a_modules_number_has_the_words_of_its_name(name: str, tmp_path: Path) -> None:
    # GIVEN a module that captures in a method which modules are called by, or in another, and a number that moves on
    text = PRELUDE + NAMED.replace("net.NAME", "net" if name == "forward" else "net.step").replace("NAME", name)
    # WHEN the program is diagnosed
    with quiet():
        found = pgk.diagnose(load(text, tmp_path / "program.py")["main"])
    # THEN the words keep it in a tensor, and ask for no graph of each value
    assert [f.frame.text for f in found.failures if f.frame] == ["net.scale *= 0.9"]
    assert "self.scale = torch.full((), float(self.scale), device='sim')" in found.failure.fix, found.failure.fix
