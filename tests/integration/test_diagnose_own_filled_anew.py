"""A tensor of the capturing function alone, which each call makes anew: it is kept and filled, and not only kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
STAGES = """
class TwoStages:
    def __init__(self, dim=8, most=6):
        torch.manual_seed(0)
        self.first = torch.randn(dim, dim, device=device)
        self.second = torch.randn(dim, dim, device=device)
        self.x = torch.zeros(most, dim, device=device)
        self.g1, self.g2 = cuda.CUDAGraph(), cuda.CUDAGraph()
        torch.relu(self.x @ self.first)
        with cuda.graph(self.g1):
            self.h = torch.relu(self.x @ self.first)
        masked = self.masked(self.h)
        torch.tanh(masked @ self.second)
        with cuda.graph(self.g2):
            self.out = torch.tanh(masked @ self.second)
    def masked(self, h):
        return h.masked_fill(h < h.mean(), 0.0)
    def step(self, x):
        self.x.copy_(x)
        self.g1.replay()
        AGAIN
        self.g2.replay()
        return self.out.clone()
execute = TwoStages().step
args = (torch.randn(6, 8, device=device),)
"""
SHAPES = """
class PerShape:
    def __init__(self, dim=8):
        torch.manual_seed(0)
        self.w = torch.randn(dim, dim, device=device)
        self.graphs = {}
    def capture(self, x, lengths):
        static = x.clone()
        MASK
        self.body(static, mask)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = self.body(static, mask)
        return g, static, out
    def body(self, x, mask):
        return (torch.tanh(x @ self.w) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    def __call__(self, x, lengths):
        key = tuple(x.shape)
        if key not in self.graphs:
            self.graphs[key] = self.capture(x, lengths)
        g, static, out = self.graphs[key]
        static.copy_(x)
        FILL
        g.replay()
        return out.clone()
execute = PerShape()
args = (torch.randn(3, 5, 8, device=device), torch.tensor([2, 5, 3], device=device))
"""
OF_LENGTHS = (
    "steps = torch.arange(x.shape[1], device=device)[None]\n        mask = (steps < lengths[:, None]).float()",
    "steps = torch.arange(x.shape[1], device=device)[None]; mask = (steps < lengths[:, None]).float()",
)


def fixes(text: str, path: Path, **parts: str) -> dict[str, str]:
    for name, part in parts.items():
        text = text.replace(name, part)
    names = load(PRELUDE + text, path)
    return {f.code: f.fix for f in pgk.diagnose(names["execute"], *names["args"]).failures}


@pytest.mark.parametrize("again", ["masked = self.masked(self.h)", "masked = self.h.clamp(min=0.5)"])
def test_what_a_step_makes_again_is_copied_to_the_kept_tensor(again: str, tmp_path: Path) -> None:
    # GIVEN a graph that reads a tensor of the constructor's, to whose name each step gives another one
    # WHEN diagnosed
    said = fixes(STAGES, tmp_path / "program.py", AGAIN=again)
    # THEN it is kept, and filled in the step
    assert f"self.g2.reads = (masked,); and in each call, ahead of its replay, `{again}; " in said["freed-input"]
    assert "self.g2.reads[0].copy_(masked)`" in said["freed-input"]


def test_what_nothing_makes_again_is_kept(tmp_path: Path) -> None:
    # GIVEN the same that no step makes again
    # WHEN diagnosed
    said = fixes(STAGES, tmp_path / "program.py", AGAIN="pass")
    # THEN
    assert said["freed-input"].endswith("self.g2.reads = (masked,)")


def test_what_is_made_of_an_argument_is_made_again_ahead_of_each_replay(tmp_path: Path) -> None:
    # GIVEN a graph for each shape, which reads a mask that is made of an argument
    # WHEN diagnosed
    said = fixes(SHAPES, tmp_path / "program.py", MASK=OF_LENGTHS[0], FILL="pass")
    # THEN both what is gone and the argument that is not read are told with the same lines
    copied = f"{OF_LENGTHS[1]}; g.reads[0].copy_(mask)"
    assert f"g.reads = (mask,); and in each call, ahead of its replay, `{copied}`" in said["freed-input"]
    assert said["stale-input"] == f"before  g.replay()\nafter   {copied}; g.replay()"


def test_what_is_made_of_a_shape_is_kept(tmp_path: Path) -> None:
    # GIVEN a mask that is made of the shape alone
    mask = "mask = torch.ones_like(x[..., 0]); mask[:, x.shape[1] // 2:] = 0"
    # WHEN diagnosed
    said = fixes(SHAPES, tmp_path / "program.py", MASK=mask, FILL="pass")
    # THEN
    assert said["freed-input"].endswith("g.reads = (mask,)")
