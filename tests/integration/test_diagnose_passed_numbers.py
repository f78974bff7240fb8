"""Numbers that a function was given which has captured with them, and has returned ahead of the replays."""

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
RUNNER = """
class Runner:
    def __init__(self):
        self.x, self.graph = torch.ones(4, 3, device=device), None
    def capture(self, n):
        HEAD
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = CAPTURED
    def run(self, x, **given):
        LAUNCH
        self.graph.replay()
        return self.y RESULT.clone()
    def step(self, x, n):
        FILLED
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
def main():
    runner, rows = Runner(), [torch.rand(n, 3, device=device) for n in (2, 4, 3)]
    MAIN
"""
PADDED = "n = x.shape[0]\n        if self.graph is None:\n            self.capture(n)\n        self.x[:n].copy_(x)"
PLAIN = "self.x.copy_(x)"
SIZED = {"CAPTURED": "self.x[:n] * 2", "LAUNCH": PADDED, "MAIN": "return [runner.run(x) for x in rows]"}
SCALED = {"CAPTURED": "self.x / n", "LAUNCH": PLAIN}
FULL = "runner.run(torch.rand(4, 3, device=device))"
MOVED = """t, out = 1.0, []
    runner.capture(t)
    for i in range(3):
        out.append(RUN)
        t *= 0.5
    return out""".replace("RUN", FULL)
ANEW = """out = []
    for t in (1.0, 0.5):
        runner.capture(t)
        out.append(RUN)
    return out""".replace("RUN", FULL)
WRONG = {
    "rows of the first batch": (SIZED, "n is 4 at a replay, and capture has captured with 2", "`if n not in graphs:`"),
    "a size computed of it": (
        SIZED | {"HEAD": "half = n // 2", "CAPTURED": "self.x[:half] * 2"},
        "n is 4 at a replay, and capture has captured with 2",
        "`if n not in graphs:`",
    ),
    "a temperature of the caller's": (
        SCALED | {"MAIN": MOVED},
        "t, given as n, is 0.5 at a replay, and capture has captured with 1.0",
        "that call is given `n_in` for `t`, and ahead of `out.append(runner.run(torch.rand(4, 3, device=device)))`",
    ),
    "a schedule": (
        SCALED
        | {
            "MAIN": "taus = [1.0, 0.5]\n    runner.capture(taus[0])\n    for t in taus:\n        out = "
            "runner.step(self_x, t)\n    return out".replace("self_x", "runner.x")
        },
        "t, given as n, is 0.5 at a replay, and capture has captured with 1.0",
        "comes `n_in.fill_(t)`",
    ),
    "an argument of the same name": (
        SCALED | {"MAIN": "runner.capture(1.0)\n    return [runner.step(runner.x, n) for n in (1.0, 2.0)]"},
        "n is 2.0 at a replay, and capture has captured with 1.0",
        "what is captured reads `self.n_in` for `n`, and ahead of self.graph.replay() `self.n_in.fill_(n)`",
    ),
    "rows by a list": (
        {
            "HEAD": "rows = torch.tensor(n, device=device)\n        self.rows = rows",
            "CAPTURED": "self.x.index_select(0, rows)",
            "LAUNCH": PLAIN,
            "MAIN": "runner.capture([0, 1])\n    return [runner.step(runner.x, n) for n in ([0, 1], [1, 2])]",
        },
        "n is [1, 2] at a replay, and capture has captured with [0, 1]",
        "`if tuple(n) not in graphs:`",
    ),
}
RIGHT = {
    "the largest first, and cut": SIZED | {"RESULT": "[:n]", "MAIN": "return [runner.run(x) for x in rows[1:]]"},
    "captured again": SCALED | {"MAIN": ANEW},
    "a variable of another loop": SCALED
    | {
        "MAIN": "t = 2.0\n    runner.capture(t)\n    return sum(RUN.sum() * t for t in (1.0, 3.0))".replace("RUN", FULL)
    },
    "a variable that is used again": SCALED
    | {"MAIN": "t = 2.0\n    runner.capture(t)\n    t = 5\n    return RUN * t".replace("RUN", FULL)},
    "so many replays": SCALED
    | {
        "FILLED": "for _ in range(n):\n            self.graph.replay()",
        "MAIN": "runner.capture(2.0)\n    return [runner.step(runner.x, 3) for _ in range(2)]",
    },
    "a tensor that is filled": {
        "HEAD": "self.t = torch.full((), n, device=device)",
        "CAPTURED": "self.x / self.t",
        "LAUNCH": PLAIN,
        "FILLED": "self.t.fill_(n)",
        "MAIN": "runner.capture(1.0)\n    return [runner.step(runner.x, n) for n in (1.0, 2.0)]",
    },
}
BEFORE = """
class Runner:
    def __init__(self, scale):
        self.x, self.scale = torch.ones(4, 3, device=device), scale
    def capture(self, scale):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x * scale
    def step(self, x, scale):
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
runner = Runner(1.0)
runner.capture(1.0)
def main(x):
    return runner.step(x, 1.0) + runner.step(x, SECOND)
args = (torch.ones(4, 3, device=device),)
"""


def _program(parts: dict[str, str]) -> str:
    text = RUNNER
    for name in ("HEAD", "CAPTURED", "LAUNCH", "RESULT", "FILLED", "MAIN"):
        text = text.replace(name, parts.get(name, "" if name == "RESULT" else "pass"))
    return text


@pytest.mark.parametrize("case", WRONG)
def test_a_number_that_is_gone_at_the_replay(tmp_path: Path, case: str) -> None:
    # GIVEN a method that captures with a number, and a replay behind it at which that is another one
    parts, said, fix = WRONG[case]
    names = load(PRELUDE + _program(parts), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN the captured line is told, with both numbers and what is written
    assert [(f.code, said in f.message) for f in found.failures] == [("scalar-frozen", True)]
    assert fix in found.failures[0].fix
    frame = found.failures[0].frame
    assert frame is not None
    assert "self.y = " in frame.text


@pytest.mark.parametrize("case", RIGHT)
def test_a_number_that_is_right_at_the_replay(tmp_path: Path, case: str) -> None:
    # GIVEN the same, where the graph has the right one, or the name means something else
    names = load(PRELUDE + _program(RIGHT[case]), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN nothing is told
    assert found.failures == ()


@pytest.mark.parametrize(("second", "told"), [("2.0", 1), ("1.0", 0)])
def test_a_capture_of_before(tmp_path: Path, second: str, told: int) -> None:
    # GIVEN a capture at the top of the file, and a function that only replays it
    names = load(PRELUDE + BEFORE.replace("SECOND", second), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"], *names["args"])

    # THEN another number for the same argument is told
    assert [f.message for f in found.failures] == ["scale is 2.0 at a replay, and capture has captured with 1.0"] * told


CALLED = """
nets = [nn.Linear(3, 3).to(device) for _ in range(2)]
class Cache:
    def __init__(self):
        self.table = {}
    @torch.no_grad()
    def __call__(self, name, fn, x):
        key = KEY
        if key not in self.table:
            held = x.clone()
            fn(held)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = fn(held)
            self.table[key] = (graph, held, out)
        graph, held, out = self.table[key]
        held.copy_(x)
        graph.replay()
        return out.clone()
cache = Cache()
def main():
    x = torch.ones(2, 3, device=device)
    for i, net in enumerate(nets):
        x = cache(i, net, x)
    return x
"""
OF_MANY = """
x = torch.ones(2, 3, device=device)
def scaled(x, k):
    return x * k
def graph_of(fn, *args, **kwargs):
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = fn(*args, **kwargs)
    return graph, out
def main():
    k, outs = 1.0, []
    graph, y = graph_of(GIVEN)
    for _ in range(3):
        x.fill_(1.0)
        graph.replay()
        outs.append(y.clone())
        k += STEP
    return outs
"""
FLAGGED = """
class Scores:
    def __init__(self):
        self.x, self.graph = torch.ones(3, device=device), None
    def compute(self, twice):
        return self.x * 2 if twice else self.x + 1
    def __call__(self, x, **given):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = self.compute(**given)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
scores = Scores()
def main():
    return [scores(torch.rand(3, device=device), twice=each) for each in (False, True)]
"""


@pytest.mark.parametrize(("key", "told"), [("x.shape", 1), ("(name, x.shape)", 0)])
def test_another_function_for_the_same_key(tmp_path: Path, key: str, told: int) -> None:
    # GIVEN a table of graphs of the functions that it is given
    names = load(PRELUDE + CALLED.replace("KEY", key), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN another function is told where the key does not tell it apart, with the key that does
    assert [(f.code, f.message) for f in found.failures] == [
        ("branch-frozen", "fn is another one at a replay, and the graph has what it was at its capture")
    ] * told
    assert all("`key = (x.shape, fn)` for `key = x.shape`" in f.fix for f in found.failures)


@pytest.mark.parametrize(
    ("given", "step", "said"),
    [
        ("scaled, x, k", "1.0", ["k, given as args[1], is 2.0 at a replay, and graph_of has captured with 1.0"]),
        ("scaled, x, k=k", "1.0", ["k, given as kwargs['k'], is 2.0 at a replay, and graph_of has captured with 1.0"]),
        ("scaled, x, k", "0.0", []),
    ],
)
def test_one_of_many_arguments(tmp_path: Path, given: str, step: str, said: list[str]) -> None:
    # GIVEN a helper that captures a function with all that it is given
    names = load(PRELUDE + OF_MANY.replace("GIVEN", given).replace("STEP", step), tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN a number of it that moves is told where it is given
    assert [f.message for f in found.failures] == said
    assert all(f.frame and "graph_of(" in f.frame.text for f in found.failures)


def test_a_flag_among_many_gets_a_graph_for_each(tmp_path: Path) -> None:
    # GIVEN a flag among keywords, which decides what is captured
    names = load(PRELUDE + FLAGGED, tmp_path / "program.py")

    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])

    # THEN no tensor is made of it, and a call may leave it out
    assert [f.code for f in found.failures] == ["branch-frozen"]
    assert "`if given.get('twice') not in graphs:`" in found.failures[0].fix
