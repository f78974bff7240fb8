"""Steps that keep a graph for each key, where a number of theirs is in no key; what captures in no call is left."""

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
STEP = """
def act(x, t, flip):
    return torch.tanh(-x / t) if flip else torch.tanh(x / t)
class Annealed:
    def __init__(self):
        self.cache, self.calls = {}, 0
    def run(self, x, t, flip):
        key = KEY
        if key not in self.cache:
            held, graph = x.clone(), cuda.CUDAGraph()
            with cuda.graph(graph):
                y = act(held, t, flip)
            self.cache[key] = graph, held, y
        graph, held, y = self.cache[key]
        held.copy_(x)
        graph.replay()
        return y.clone()
    def __call__(self, x):
        self.calls += 1
        return self.run(x, NUMBER, self.calls % 2 == 0)
step, x = Annealed(), torch.rand(4, device=device)
"""
LEVELS = """
class Leveled(Annealed):
    levels = (0.25, 0.5, 1.0)
    def __init__(self):
        super().__init__()
        for t in self.levels:
            self.capture(t)
    def capture(self, t):
        held, graph = torch.zeros(4, device=device), cuda.CUDAGraph()
        with cuda.graph(graph):
            y = act(held, t, False)
        self.cache[t] = graph, held, y
    def __call__(self, x):
        self.calls += 1
        t = 0.9 / self.calls
        graph, held, y = self.cache[min(self.levels, key=lambda level: abs(level - t))]
        held.copy_(x)
        graph.replay()
        return y.clone()
step, x = Leveled(), torch.rand(4, device=device)
"""


@pytest.mark.parametrize(
    ("key", "number", "told"),
    [
        ("flip", "1.0 / self.calls", ["scalar-frozen"]),
        ("(flip, t)", "(0.5, 1.0)[self.calls % 2]", []),
        ("flip", "(0.5, 1.0)[self.calls % 2]", []),  # which the key decides, too
    ],
)
def test_a_number_that_no_key_has_is_told_where_calls_take_turns(
    key: str, number: str, told: list[str], tmp_path: Path
) -> None:
    # GIVEN a step whose first two calls capture, each for a key of its own, and whose third replays the first graph
    names = load(PRELUDE + STEP.replace("KEY", key).replace("NUMBER", number), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], names["x"]).failures
    # THEN a number that another one is by then is told, and none that the key has, or decides
    assert [f.code for f in found] == told, found


def test_graphs_that_no_call_captures_stay_where_they_are(tmp_path: Path) -> None:
    # GIVEN a step whose graphs are captured when it is made, and a method that it has, and never calls, that would
    names = load(PRELUDE + STEP.replace("KEY", "flip").replace("NUMBER", "1.0") + LEVELS, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], names["x"]).failures
    # THEN it is not told to fail without them
    assert not found
