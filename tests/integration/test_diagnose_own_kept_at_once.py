"""Results of several replays that one line keeps, and that lines behind it compute on: all rows are the last one."""

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
PROGRAM = """
from collections import namedtuple
Pair = namedtuple("Pair", "mean top")
class Server:
    def __init__(self, net, make):
        self.net, self.x = net, torch.zeros(2, 8, device=device)
        with torch.no_grad():
            self.net(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.y = make(self.net(self.x))
    def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y
    def stream(self, xs):
        for x in xs:
            yield self.run(x)
def serve(server, xs):
    return [server.run(x) for x in xs]
def main():
    torch.manual_seed(0)
    r = Server(nn.Linear(8, 4).to(device), lambda h: MAKE)
    xs = [torch.randn(2, 8).to(device) for _ in range(4)]
    KEEP
    return READ
"""
KEPT = {
    ("rows = [r.run(x) for x in xs]", "[o.cpu() for o in rows]"): "[r.run(x).clone() for x in xs]",
    ("rows = [\n        r.run(x)\n        for x in xs\n    ]", "[o.mean().item() for o in rows]"): (
        "[r.run(x).clone() for x in xs]"
    ),
    ("rows = [r.run(x) for x in xs]", "torch.stack([o + 1 for o in rows]).cpu()"): "[r.run(x).clone() for x in xs]",
    ("rows = {i: r.run(x) for i, x in enumerate(xs)}", "[o.sum().item() for o in rows.values()]"): (
        "{i: r.run(x).clone() for i, x in enumerate(xs)}"
    ),
    ("rows = list(r.stream(xs))", "[o.norm().item() for o in rows]"): "[y.clone() for y in r.stream(xs)]",
    ("rows = list(map(r.run, xs))", "[o.norm().item() for o in rows]"): "[y.clone() for y in map(r.run, xs)]",
    ("rows = serve(r, xs)", "[o.norm().item() for o in rows]"): "[server.run(x).clone() for x in xs]",
    ("ya, yb = r.run(xs[0]), r.run(xs[1])", "(ya.mean().item(), yb.mean().item())"): (
        "ya, yb = (r.run(xs[0]).clone(), r.run(xs[1]))"
    ),
    ("ya, yb = (r.run(x) for x in xs[:2])", "(ya - yb).cpu()"): "(r.run(x).clone() for x in xs[:2])",
    ("ya, yb = [r.run(x) for x in xs[:2]]", "(ya - yb).cpu()"): "[r.run(x).clone() for x in xs[:2]]",
    ("ya, yb = map(r.run, xs[:2])", "(ya - yb).cpu()"): "[y.clone() for y in map(r.run, xs[:2])]",
    ("rows = [r.run(x) for x in xs]", "[(o.top + o.mean).cpu() for o in rows]"): (
        "[copy.deepcopy(r.run(x)) for x in xs]"
    ),
    ("n, rows = 4, [r.run(x) for x in xs]", "[o.cpu() for o in rows]"): "[r.run(x).clone() for x in xs]",
    ("rows, n = {i: r.run(x) for i, x in enumerate(xs)}, 4", "[o.cpu() for o in rows.values()]"): (
        "{i: r.run(x).clone() for i, x in enumerate(xs)}"
    ),
    ("n, rows = 4, list(r.run(x) for x in xs)", "[o.cpu() for o in rows]"): "list((r.run(x).clone() for x in xs))",
    ("n, rows = 4, [r.run(xs[0]), r.run(xs[1])]", "[o.cpu() for o in rows]"): (
        "n, rows = (4, [r.run(xs[0]).clone(), r.run(xs[1])])"
    ),
    ("n, rows = 4, serve(r, xs)", "[o.norm().item() for o in rows]"): "[server.run(x).clone() for x in xs]",
}
RIGHT = (
    ("rows = [r.run(x).cpu() for x in xs]", "[o.mean() for o in rows]"),
    ("rows = [r.run(x).sum().item() for x in xs]", "sum(rows) + r.y.sum().item()"),
    ("rows = [r.run(x) + 1 for x in xs]", "[o.mean().item() for o in rows]"),
    ("rows = [y.clone() for y in r.stream(xs)]", "[o.mean().item() for o in rows]"),
    ("rows = [r.run(x) for x in xs]", "rows[-1].mean().item()"),
    ("n, rows = 4, [r.run(x).cpu() for x in xs]", "[o.mean() for o in rows]"),
    ("n, rows = 4, [r.run(x) for x in xs]", "rows[-1].mean().item()"),
    ("n, rows = 4, serve(r, xs[:1])", "[o.norm().item() for o in rows]"),
    ("rows = [r.run(x) for x in xs]", "r.y.mean().item()"),
    ("_, y = r.run(xs[0]), r.run(xs[1])", "y.mean().item()"),
    ("ya, yb = r.run(xs[0]).clone(), r.run(xs[1])", "(ya.mean().item(), yb.mean().item())"),
    ("_, yb = map(r.run, xs[:2])", "yb.mean().item()"),
    ("ya, yb = (r.run(x).clone() for x in xs[:2])", "(ya - yb).cpu()"),
    ("ya, yb = (r.run(x) for x in xs[:2])", "yb.mean().item()"),
    ("ya, yb = r.run(xs[0]).unbind()", "(ya.mean().item(), yb.mean().item())"),
)


def told(keep: str, read: str, file: Path) -> list[tuple[str, str]]:
    """What is told of a program that keeps results so, and the line that is to come there."""
    make = "Pair(h.mean(-1), h.amax(-1))" if ".top" in read else "h * 2"
    names = load(PRELUDE + PROGRAM.replace("MAKE", make).replace("KEEP", keep).replace("READ", read), file)
    return [(f.code, f.fix.partition("\nafter   ")[2]) for f in pgk.diagnose(names["main"]).failures]


SWEPT = [each for each in KEPT if each[0].startswith(("n, rows", "rows, n"))][1:]


@pytest.mark.parametrize(
    ("keep", "read"), [pytest.param(*each, marks=pytest.mark.sweep) if each in SWEPT else each for each in KEPT]
)
def test_results_that_one_line_keeps_are_told_at_that_line(keep: str, read: str, tmp_path: Path) -> None:
    # GIVEN a line that keeps the results of several replays, which lines behind it compute on
    # WHEN it is asked THEN that line is told, with copies
    assert told(keep, read, tmp_path / "program.py") == [("output-alias", KEPT[keep, read])]


@pytest.mark.parametrize(("keep", "read"), RIGHT)
def test_what_is_read_at_once_or_copied_or_the_last_is_right(keep: str, read: str, tmp_path: Path) -> None:
    # GIVEN what each replay gives is read ahead of the next one, or copied, or only the last is read
    # WHEN it is asked THEN nothing is told
    assert told(keep, read, tmp_path / "program.py") == []
