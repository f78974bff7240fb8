"""Settings that a step is given as one object, which its capture reads: ``run(x, params)``, ``params.scale``."""

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
from dataclasses import dataclass
from types import SimpleNamespace
@dataclass
class Params:
    scale: float = 0.5
    greedy: bool = False
    name: str = "default"
class Head:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(4, 3, device=device)
        self.x = torch.zeros(2, 4, device=device)
        self.scale = torch.ones((), device=device)
        self.params, self.graphs = None, {}
        self.x @ self.w
    def body(self):
        return torch.softmax(self.x @ self.w / READ, -1)
    def run(self, x, params):
        self.params = params
        self.scale.fill_(OF)
        self.x.copy_(x)
        key = KEY
        if key not in self.graphs:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                y = self.body()
            self.graphs[key] = graph, y
        graph, y = self.graphs[key]
        graph.replay()
        return y.clone()
run = Head().run
args = (torch.randn(2, 4, device=device), GIVEN)
"""
GIVEN = {"Params()": ".scale", "SimpleNamespace(scale=0.5, seed=3)": ".scale", "{'scale': 0.5, 'n': 2}": "['scale']"}


def told(tmp_path: Path, given: str, read: str, key: str = "x.shape") -> list[tuple[str, str]]:
    """What is told of such a program, with what is written there."""
    program = PROGRAM.replace("READ", read).replace("GIVEN", given).replace("KEY", key)
    names = load(PRELUDE + program.replace("OF", f"params{GIVEN[given]}"), tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["run"], *names["args"]).failures
    return [(f.code, f.fix) for f in found]


@pytest.mark.parametrize("given", GIVEN)
def test_a_number_of_the_settings_of_a_call_that_the_capture_reads_is_told(given: str, tmp_path: Path) -> None:
    # GIVEN a step that keeps the settings of each call, and a capture that reads a number of theirs
    # WHEN it is diagnosed
    found = told(tmp_path, given, f"self.params{GIVEN[given]}")
    # THEN it is frozen, and its tensor is made where the settings are there: `__init__` has none
    assert [code for code, _ in found] == ["scalar-frozen"]
    assert "once, ahead of the first capture `self.params_scale_in = torch.full(" in found[0][1]


@pytest.mark.parametrize("given", GIVEN)
def test_a_number_of_the_settings_that_a_tensor_has_is_right(given: str, tmp_path: Path) -> None:
    # GIVEN the same with a capture that reads a tensor, which each call fills
    # WHEN
    found = told(tmp_path, given, "self.scale")
    # THEN
    assert not found


@pytest.mark.parametrize("given", GIVEN)
def test_a_graph_for_each_number_is_right(given: str, tmp_path: Path) -> None:
    # GIVEN the same with a table of graphs that has the number in its key
    # WHEN
    found = told(tmp_path, given, f"self.params{GIVEN[given]}", key=f"(x.shape, params{GIVEN[given]})")
    # THEN
    assert not found
