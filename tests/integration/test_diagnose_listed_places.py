"""Places that a list of the host's holds for several requests are told with a tensor of all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(8, 8).to(device)
        self.keys = torch.zeros(3, 2, 16, 4, device=device)
        self.scales = torch.arange(1, 17, device=device).float()
    def forward(self, x, lengths):
        k = self.key(x).view(3, 2, 4)
        total = 0
        for i in range(3):
            self.keys[i, :, lengths[i]] = k[i] * 2
            total = total + self.scales[lengths[i]]
        return self.keys.sum(2) * total
class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.cache, self.lengths = Cache(), [0, 3, 1]
    @torch.no_grad()
    def step(self, x):
        out = self.cache(x, self.lengths)
        self.lengths = [n + 1 for n in self.lengths]
        return out
inputs = (torch.ones(3, 8, device=device),)
"""


def test_places_of_a_list_are_told_with_a_tensor_of_all_of_them(tmp_path: Path) -> None:
    # GIVEN a cache that is written, and a table that is read, at the lengths of several requests
    space = load(PROGRAM, tmp_path / "program.py")
    found = pgk.diagnose(space["Engine"]().step, *space["inputs"])
    # WHEN the words of both lines are followed to the letter
    text = PROGRAM
    for failure in (f for f in found.failures if f.code == "size-frozen"):
        before, after = failure.fix.split("\n", 1)
        instead = re.findall(r"`([^`]+)`", after)[-1]
        text = text.replace(before.removeprefix("before  "), instead)
    assert text.count("lengths_in[i].reshape(1)") == 2, found
    text = text.replace("class Cache", "lengths_in = torch.tensor([0, 3, 1], device=device)\nclass Cache")
    fixed = load(text, tmp_path / "fixed.py")
    # THEN a graph of these lines gives what the program gives, at lengths that move
    assert _launched(fixed, fixed["lengths_in"]) == _eager(space)
    assert not [f for f in pgk.diagnose(fixed["Engine"]().step, *fixed["inputs"]).failures if f.code == "size-frozen"]


def _eager(space: dict[str, Any]) -> list[list[float]]:
    engine = space["Engine"]()
    return [engine.step(*_rows(space, i)).flatten().tolist() for i in range(5)]


def _launched(space: dict[str, Any], lengths_in: torch.Tensor) -> list[list[float]]:
    engine, x, graph, found = space["Engine"](), space["inputs"][0].clone(), pgk.cuda.CUDAGraph(), []
    kept = engine.cache.keys.clone()
    with torch.no_grad():
        engine.cache(x, engine.lengths)
        engine.cache.keys.copy_(kept)
        with pgk.cuda.graph(graph):
            out = engine.cache(x, engine.lengths)
    for i in range(5):
        x.copy_(*_rows(space, i))
        lengths_in.copy_(torch.tensor([n + i for n in (0, 3, 1)]))
        graph.replay()
        found.append(out.flatten().tolist())
    return found


def _rows(space: dict[str, Any], i: int) -> tuple[torch.Tensor]:
    return (space["inputs"][0] * (0.5 + i),)
