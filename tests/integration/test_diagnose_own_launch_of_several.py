"""Words for launches of several rounds, for counters that lines begin anew, and for keys that lack a flag."""

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
SOLVER = """
class Source:
    def __init__(self):
        self.t = 0.0
    def now(self):
        self.t += 0.5
        return math.sin(self.t)
class Probe:
    def __init__(self):
        self.trace, self.n = torch.zeros(64, device=device), 0
    def record(self, u):
        self.trace[self.n] = u.sum()
        self.n += 1
class Solver:
    def __init__(self):
        self.u, self.source, self.probe, self.inner = torch.zeros(6, device=device), Source(), Probe(), 3
    def substep(self):
        self.u.mul_(0.9)
        self.u += self.source.now()
        self.probe.record(self.u)
    def advance(self):
        for _ in range(self.inner):
            self.substep()
    def run(self, steps):
        self.advance()
        self.u.zero_()
        self.source.t = 0.0
        self.probe.n = 0
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.advance()
        for _ in range(steps):
            graph.replay()
def main():
    solver = Solver()
    solver.run(4)
    return solver.u.cpu(), solver.probe.trace.cpu()
"""
CACHE = """
net = nn.Linear(4, 4).to(device)
class Entry:
    def __init__(self, graph, x, out):
        self.graph, self.x, self.out = graph, x, out
class Server:
    def __init__(self):
        self.entries = {}
    def capture(self, x, how, double):
        x = x.clone()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = net(x) * 2 if double else net(x)
        return Entry(graph, x, out)
    @torch.no_grad()
    def serve(self, x, how="mean", double=True):
        key = (len(x), how)
        entry = self.entries.get(key)
        if entry is None:
            net(x)
            entry = self.entries[key] = self.capture(x, how, double)
            if len(self.entries) > 8:
                self.entries.clear()
        entry.x.copy_(x)
        entry.graph.replay()
        return entry.out.clone()
def main():
    server = Server()
    return [server.serve(torch.randn(2, 4, device=device), double=i % 2 == 0).cpu() for i in range(4)]
"""


def told(text: str, file: Path) -> dict[str, str]:
    """What to write, by the line that is told."""
    with quiet():
        found = pgk.diagnose(load(PRELUDE + text, file)["main"]).failures
    return {f.frame.text: f.fix.partition("after   ")[2] for f in found if f.frame is not None}


def test_a_helper_that_runs_in_each_round_of_a_launch_gives_each_a_tensor(tmp_path: Path) -> None:
    # GIVEN a solver that captures three rounds, each of which asks for the next number and counts
    found = told(SOLVER, tmp_path / "program.py")
    # WHEN it is diagnosed THEN there are three tensors, and three calls ahead of a launch
    made = "once `now_in = [torch.zeros((), device=device) for _ in range(3)]`"
    assert made in found["self.u += self.source.now()"]
    assert "`for each in now_in: each.fill_(self.source.now())`" in found["self.u += self.source.now()"]
    assert "3 times there" in found["self.t += 0.5"]
    # AND the line that begins the counter anew writes the tensor that it becomes
    assert "`self.probe.n = 0`, becomes `self.probe.n.fill_(0)`" in found["self.trace[self.n] = u.sum()"]


def test_these_words_give_the_numbers_of_eager_code(tmp_path: Path) -> None:
    # GIVEN the same with its words followed
    name, line = "self.source.now()", "        self.u += self.source.now()"
    text = SOLVER.replace(line, "        self.u += next(now_in_next)")
    made = "import itertools\nnow_in = [torch.zeros((), device=device) for _ in range(3)]\n"
    made += "now_in_next = itertools.cycle(now_in)\n"
    text = made + text.replace(
        "            graph.replay()", f"            for each in now_in: each.fill_({name})\n            graph.replay()"
    )
    text = text.replace(
        "torch.zeros(64, device=device), 0",
        "torch.zeros(64, device=device), torch.zeros((), dtype=torch.long, device=device)",
    )
    text = text.replace("self.probe.n = 0", "self.probe.n.fill_(0)").replace(
        "self.trace[self.n] = u.sum()",
        "self.trace.index_copy_(0, self.n.reshape(1), u.sum().expand_as(self.trace.select(0, 0)).unsqueeze(0))",
    )
    eager = SOLVER.replace("            graph.replay()", "            self.advance()")
    eager = eager.replace("        with cuda.graph(graph):\n            self.advance()\n", "")
    # WHEN both run THEN they agree
    mended, own = (load(PRELUDE + each, tmp_path / f"{n}.py")["main"]() for n, each in enumerate((text, eager)))
    assert all(torch.allclose(a, b) for a, b in zip(mended, own, strict=True))
    # AND nothing is left to tell
    assert told(text, tmp_path / "mended.py") == {}


def test_a_flag_that_the_key_of_a_cache_lacks_goes_into_the_line_that_makes_it(tmp_path: Path) -> None:
    # GIVEN a cache of what a method has captured, by a key without one of its flags
    found = told(CACHE, tmp_path / "program.py")
    # WHEN it is diagnosed THEN the words are of that key, and no other table
    (words,) = found.values()
    assert words.endswith("it goes into the key, `key = (len(x), how, double)` for `key = (len(x), how)`")
    # AND nothing is left to tell behind that
    assert told(CACHE.replace("(len(x), how)", "(len(x), how, double)"), tmp_path / "mended.py") == {}
