"""Graphs of a loop that hand a name on, and keys of more than one number: right programs, and those beside them."""

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
SAMPLER = """
class Sampler:
    def __init__(self, steps=3):
        torch.manual_seed(0)
        self.net = nn.Linear(8, 8).to(device).requires_grad_(False)
        self.steps, self.graphs = steps, {}
        self.x, self.prev = torch.zeros(4, 8, device=device), torch.zeros(4, 8, device=device)
    def cell(self, x, prev):
        return torch.tanh(self.net(prev) + x)
    def sample(self, x):
        self.x.copy_(x)
        if not self.graphs:
            BEGIN
            for k in range(self.steps):
                self.cell(self.x, self.prev)
                g = cuda.CUDAGraph()
                with cuda.graph(g):
                    new = self.cell(self.x, self.prev)
                self.graphs[k] = (g, new)
                self.prev = new
        for k in range(self.steps):
            self.graphs[k][0].replay()
        return self.prev.clone()
execute = Sampler().sample
args = (torch.randn(4, 8, device=device),)
"""
KEYS = """
class Cache:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(8, 8, device=device)
        self.graphs = {}
    def __call__(self, x, power, scale):
        key = KEY
        if key not in self.graphs:
            static = x.clone()
            g = cuda.CUDAGraph()
            torch.tanh(static @ self.w) * power + static * scale
            with cuda.graph(g):
                out = torch.tanh(static @ self.w) * power + static * scale
            self.graphs[key] = (g, static, out)
        g, static, out = self.graphs[key]
        static.copy_(x)
        g.replay()
        return out.clone()
execute = Cache()
args = (torch.randn(4, 8, device=device), 2, 0.5)
"""


def told(text: str, path: Path) -> list[tuple[str, str]]:
    names = load(PRELUDE + text, path)
    return [(f.code, f.message.split()[0]) for f in pgk.diagnose(names["execute"], *names["args"]).failures]


@pytest.mark.parametrize(("begin", "problems"), [("self.prev = self.x", []), ("pass", [("stale-input", "self.prev")])])
def test_a_name_that_a_loop_of_captures_hands_on(begin: str, problems: list[tuple[str, str]], tmp_path: Path) -> None:
    # GIVEN graphs of which each reads what the one before makes, and the first an input, or what the last call left
    # WHEN diagnosed
    # THEN only what the last call left is told
    assert told(SAMPLER.replace("BEGIN", begin), tmp_path / "program.py") == problems


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("(x.shape[0], power, scale)", set()),
        ("(power, scale)", set()),
        ("(x.shape[0], power)", {"scale"}),
        ("scale", {"power"}),
    ],
)
def test_a_number_of_a_key_of_several_is_in_it(key: str, names: set[str], tmp_path: Path) -> None:
    # GIVEN a table of graphs whose key has one, or two, of the numbers that the capture reads
    # WHEN diagnosed
    # THEN those that it has not are told
    assert {name for _, name in told(KEYS.replace("KEY", key), tmp_path / "program.py")} == names
