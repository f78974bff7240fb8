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


ANSWERS = """
class Runner:
    def __init__(self):
        self.w, self.x, self.n, self.graphs = torch.eye(2, device=device), torch.zeros(2, device=device), 0, {}
    def is_first(self):
        return self.n == 0
    def body(self):
        h = self.x @ self.w
        if TEST:
            h = h * 0.1
        return LAST
    def reset(self):
        self.n = 0
    def step(self, x):
        self.x.copy_(x)
        if (KEY) not in self.graphs:
            graph = cuda.CUDAGraph()
            self.body()
            with cuda.graph(graph):
                y = self.body()
            self.graphs[KEY] = graph, y
        graph, y = self.graphs[KEY]
        graph.replay()
        self.n += 1
        return y.clone()
runner = Runner()
def main():
    runner = Runner()
    for i in range(6):
        if i == 3:
            runner.reset()
        runner.step(torch.rand(2, device=device))
"""
TEST, ANSWER = "self.n == 0", "self.is_first()"


@pytest.mark.parametrize("asks_main", [True, pytest.param(False, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    ("test", "key", "last", "is_told"),
    [
        (TEST, TEST, "h", False),
        (ANSWER, ANSWER, "h", False),
        pytest.param(TEST, TEST, "h + self.n", True, marks=pytest.mark.sweep),
        pytest.param(ANSWER, "self.n > 2", "h", True, marks=pytest.mark.sweep),
    ],
)
def test_a_graph_for_each_answer_is_one_for_each_key(
    test: str, key: str, last: str, is_told: bool, asks_main: bool, tmp_path: Path
) -> None:
    # GIVEN a table of graphs by the answer of a test, also of a method's, which decides what is captured
    text = ANSWERS.replace("TEST", test).replace("KEY", key).replace("LAST", last)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN diagnosed
    asked = (names["main"],) if asks_main else (names["runner"].step, torch.ones(2, device=names["device"]))
    found = pgk.diagnose(*asked)
    # THEN it is told only where a number is in no key, or the key is another one
    assert bool(found.failures) == is_told
    assert is_told or not any("self.n" in note for note in found.notes)
