"""What is written where a method that has returned has captured, of what its variables meant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.examine import NOT_REPLAYED
from paramgraph_kit.doctor.observe.made_first import as_large_as_it_gets
from paramgraph_kit.driver.sim.libraries import forget
from tests.programs.reading import PRELUDE, read
from tests.programs.running import diagnosed, load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfirst_own2.txt")
WORDS = {
    "adapters swapped": "after   self.A.copy_(a['A']); self.B.copy_(a['B'])",
    "out of range": "this line as it is, and a new capture behind it: no copy makes the tensor of this one as large",
    "switched off by a flag": "`if self.model.on not in graphs:`",
    "handed out as a dictionary": "after   [{k: v.clone() if torch.is_tensor(v) else v for k, v in self.model.forward",
    "a buffer": "after   `if hasattr(self, 'mask'): self.mask.copy_(m)`, and else this line as it is",
    "offloaded": "ahead of the capture, or capture again behind it",
}

BY_NAME = """
class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.adapters = nn.ModuleDict({n: nn.Linear(4, 4, bias=False) for n in ("en", "de")})
        self.active = "en"
    def forward(self, x):
        return self.base(x) + self.adapters[self.active](x)
class Host:
    def __init__(self, model):
        self.model, self.x = model.to(device).eval(), torch.zeros(2, 4, device=device)
        with torch.no_grad():
            self.model(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.model(self.x)
    def ask(self, x, language):
        self.model.active = language
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
host = Host(Multi())
def main():
    return host.ask(torch.ones(2, 4, device=device), "en") - host.ask(torch.ones(2, 4, device=device), "de")
"""
ADAPTS = """
class Adapts:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
        self.x, self.graph = torch.zeros(4, 4, device=device), None
    @torch.no_grad()
    def __call__(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.net(self.x)
        self.graph.replay()
        return self.y.clone()
adapts = Adapts()
def main():
    return torch.cat([adapts(torch.randn(4, 4, device=device)) for _ in range(3)])
"""
MORE = {
    "branch-frozen": (BY_NAME, "`if self.model.active not in graphs:`"),
    "cold-library": (ADAPTS, "put back what that moves (the statistics, "),
}


@pytest.mark.parametrize("code", MORE)
def test_a_name_that_picks_and_averages_that_a_warm_up_moves_are_told(code: str, tmp_path: Path) -> None:
    # GIVEN a word of Python's that picks an adapter, or a batch norm that has not run yet
    text, words = MORE[code]
    forget()
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN
    assert found.codes == (code,)
    assert words in found.failure.fix


@pytest.mark.parametrize("title", WORDS)
def test_a_line_that_gives_an_object_a_tensor_writes_it_where_it_stands(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose methods give an object other memory than that which its graph reads
    # WHEN
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN the words have the names that the line itself has
    assert WORDS[title] in found.failures[0].fix


@pytest.mark.parametrize(
    ("value", "now", "words"),
    [
        ("torch.cat([k, new])", (3, 4), "new rows by index_copy_"),
        ("f.cos()", (1, 4), "a new capture behind it"),  # rows of before would stay behind those of a copy
        ("f.cos()", (2, 5), "a new capture behind it"),
        ("f.cos()", (3, 5), "a new capture behind it"),
        ("f.cos()", (2, 4), ""),
    ],
)
def test_a_tensor_of_another_shape_is_none_to_copy_into(value: str, now: tuple[int, ...], words: str) -> None:
    # GIVEN what takes the place of a tensor of two rows, WHEN it is told
    said = as_large_as_it_gets("t", ast.parse(value, mode="eval").body, (2, 4), now)
    # THEN a copy is only said where it fits
    assert words in said
    assert bool(words) == bool(said)


def test_a_first_call_whose_capture_fails_leaves_nothing_to_the_next_ones(tmp_path: Path) -> None:
    # GIVEN a runner that sets its graph ahead of a capture which fails
    # WHEN
    found = diagnosed(PROGRAMS, "generator", tmp_path / "program.py")
    # THEN that is told, and that its replays were not looked at
    assert found.codes == ("unregistered-generator",)
    assert NOT_REPLAYED in found.notes
