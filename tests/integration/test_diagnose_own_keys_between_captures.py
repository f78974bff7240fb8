"""A number that the key of a cache lacks, where graphs of other keys were captured with other ones in between."""

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
SERVER = """
net = nn.Linear(4, 4).to(device)
class Server:
    def __init__(self):
        self.cache = {}
    def record(self, n, temperature):
        x = torch.zeros(n, 4, device=device)
        net(x)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = net(x) / temperature
        return graph, x, out
    @torch.no_grad()
    def __call__(self, x, temperature):
        n = len(x)
        if n not in self.cache:
            self.cache[n] = self.record(n, temperature)
        graph, static, out = self.cache[n]
        static.copy_(x)
        graph.replay()
        return out.clone()
def main():
    server, calls = Server(), ((3, 0.5), (2, 2.0), (3, 0.7), (2, 1.5))
    return [server(torch.full((n, 4), t, device=device), t).cpu() for n, t in calls]
"""
BOTH = SERVER.replace("n = len(x)", "n = (len(x), temperature)").replace("record(n,", "record(len(x),")
OF_BOTH = SERVER.replace("n = len(x)", "n = self.key(len(x), temperature)").replace("record(n,", "record(len(x),")
OF_BOTH = OF_BOTH.replace("    def record(", "    def key(self, n, t):\n        return n, t\n    def record(")
BUCKETS = """
class Server:
    def __init__(self):
        self.cache = {}
    def record(self, rows):
        x = torch.zeros(rows, 4, device=device)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = x * rows / rows + 1
        return graph, x, out
    def __call__(self, x):
        n = len(x)
        rows = next(b for b in (2, 4, 8) if b >= n)
        if rows not in self.cache:
            self.cache[rows] = self.record(rows)
        graph, static, out = self.cache[rows]
        static[:n].copy_(x)
        static[n:].zero_()
        graph.replay()
        return out[:n].clone()
def main():
    server = Server()
    return [server(torch.full((n, 4), 1.0 * n, device=device)).cpu() for n in (3, 1, 4, 7, 2, 3)]
"""


def told(text: str, file: Path) -> dict[str, str]:
    """What to write, by the line that is told."""
    with quiet():
        found = pgk.diagnose(load(PRELUDE + text, file)["main"]).failures
    return {f.frame.text: f.fix.partition("after   ")[2] for f in found if f.frame is not None}


def test_a_number_that_no_key_has_is_told_where_other_graphs_have_other_ones(tmp_path: Path) -> None:
    # GIVEN a cache by the number of rows, whose graphs read a temperature, and the one for other rows in between
    found = told(SERVER, tmp_path / "program.py")
    # WHEN it is diagnosed THEN the number is told, with one tensor that all graphs read
    words = found["out = net(x) / temperature"]
    assert "once, ahead of all captures, as in `__init__`, `self.temperature_in = torch.ones((), device=" in words
    assert "is given `self.temperature_in` for `temperature`" in words
    assert words.endswith("ahead of graph.replay() comes `self.temperature_in.fill_(temperature)`")


def test_these_words_give_the_numbers_of_eager_code(tmp_path: Path) -> None:
    # GIVEN the same with its words followed
    text = SERVER.replace("self.cache = {}", "self.cache = {}; self.temperature_in = torch.ones((), device=device)")
    text = text.replace("self.record(n, temperature)", "self.record(n, self.temperature_in)")
    text = text.replace(
        "        graph.replay()", "        self.temperature_in.fill_(temperature)\n        graph.replay()"
    )
    eager = SERVER.replace("return out.clone()", "return net(x) / temperature")
    # WHEN both run THEN they agree
    mended, own = (load(PRELUDE + each, tmp_path / f"{n}.py")["main"]() for n, each in enumerate((text, eager)))
    assert all(torch.allclose(a, b) for a, b in zip(mended, own, strict=True))
    # AND nothing is left to tell
    assert told(text, tmp_path / "mended.py") == {}


@pytest.mark.parametrize("text", [BOTH, OF_BOTH, BUCKETS], ids=["in the key", "in what makes the key", "buckets"])
def test_what_the_key_has_or_is_computed_of_is_no_problem(tmp_path: Path, text: str) -> None:
    # GIVEN caches whose keys have that number, or are computed of it
    # WHEN they are diagnosed THEN nothing is told
    assert told(text, tmp_path / "program.py") == {}
