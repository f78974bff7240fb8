"""An argument that a capture keeps as it is, under another name: a copy ahead of a replay needs a clone there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

LAYER = """
class Layer:
    def __init__(self):
        self.w, self.graph, self.graphs = torch.ones(4, device=device), None, {}
    def forward(self, x, mask):
        return x * mask + self.w
"""
ATTRIBUTE = """
    def step(self, x, mask):
        if self.graph is None:
            self.x, self.mask = x.clone(), MASK
            self.forward(self.x, self.mask)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.forward(self.x, self.mask)
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
"""
TABLE = """
    def step(self, x, mask):
        n = x.shape[0]
        if n not in self.graphs:
            static = {"x": x.clone(), "mask": mask}
            self.forward(static["x"], static["mask"])
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = self.forward(static["x"], static["mask"])
            self.graphs[n] = graph, static, out
        graph, static, out = self.graphs[n]
        static["x"].copy_(x)
        graph.replay()
        return out.clone()
"""
LOCAL = """
    def step(self, x, mask):
        if self.graph is None:
            self.x, more = x.clone(), dict(mask=mask)
            self.forward(self.x, **more)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.forward(self.x, **more)
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
"""
LISTED = """
    def step(self, x, mask):
        if self.graph is None:
            self.x = x.clone()
            both = [self.w, mask]
            self.forward(self.x, both[1])
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.forward(self.x, both[1])
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
"""
DIRECT = """
    def step(self, x, mask):
        if self.graph is None:
            self.forward(x, mask)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.forward(x, mask)
        self.graph.replay()
        return self.out.clone()
"""
LOOP = """
def main():
    layer, batches = Layer(), [(torch.rand(4).to(device), torch.rand(4).to(device)) for _ in range(4)]
    return [layer.step(x, mask) for x, mask in batches], batches
def dropped():
    layer, outs = Layer(), []
    for i in range(4):
        outs.append(layer.step(torch.full((4,), 1.0 + i).to(device), torch.rand(4).to(device)))
    return outs
"""


def ask(at: Path, step: str, what: str) -> list[str]:
    space = load(PRELUDE + LAYER + step + LOOP, at)
    if what != "step":
        return [f.fix for f in pgk.diagnose(space[what]).failures]
    given = [torch.rand(4).to(space["device"]) for _ in range(2)]
    return [f.fix for f in pgk.diagnose(space["Layer"]().step, *given).failures]


@pytest.mark.parametrize("what", ["main", "dropped", "step"])
@pytest.mark.parametrize("step", [ATTRIBUTE.replace("MASK", "mask"), TABLE], ids=["attribute", "table"])
def test_what_a_capture_keeps_as_it_is_given_is_kept_as_a_clone(tmp_path: Path, step: str, what: str) -> None:
    # GIVEN a capture that keeps its argument under another name WHEN diagnosed
    (fix,) = ask(tmp_path / "program.py", step, what)
    # THEN the words have a copy ahead of the replay, and a clone where it is kept
    assert "mask.copy_(mask)" in fix or "static['mask'].copy_(mask)" in fix
    assert "mask.clone()" in fix


def test_a_variable_of_the_capture_is_kept_with_its_graph(tmp_path: Path) -> None:
    # GIVEN a line ahead of the capture that keeps the argument in a variable WHEN diagnosed
    (fix,) = ask(tmp_path / "program.py", LOCAL, "main")
    # THEN its clone lives with the graph: the variable is no longer there when a later call replays
    assert "self.graph.mask.copy_(mask); self.graph.replay()" in fix


def test_a_clone_is_made_ahead_of_the_line_that_keeps_it(tmp_path: Path) -> None:
    # GIVEN a function that captures with a list that has its argument WHEN diagnosed
    (fix,) = ask(tmp_path / "program.py", LISTED, "main")
    # THEN the clone comes ahead of that line: one ahead of the capture would be read by nobody
    line = 1 + next(i for i, text in enumerate((PRELUDE + LAYER + LISTED).split("\n")) if "both = [" in text)
    assert f"ahead of line {line} `mask = mask.clone()`, ahead of the capture" in fix
    assert "self.graph.mask.copy_(mask)" in fix


def test_what_is_a_clone_already_needs_no_other(tmp_path: Path) -> None:
    # GIVEN a capture that keeps a clone WHEN diagnosed
    (fix,) = ask(tmp_path / "program.py", ATTRIBUTE.replace("MASK", "mask.clone()"), "step")
    # THEN
    assert "clone" not in fix


def test_all_arguments_that_a_capture_reads_are_told(tmp_path: Path) -> None:
    # GIVEN a capture that reads both of its arguments as they are WHEN its step is asked alone
    (fix,) = ask(tmp_path / "program.py", DIRECT, "step")
    # THEN both get a tensor
    assert "self.held_x.copy_(x)" in fix
    assert "self.held_mask.copy_(mask)" in fix
