"""Results that a program makes a list of at once, which has no name where it is read, or that it only gives back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.servers import SERVER

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = (
    SERVER
    + """
def stream(server):
    for x in batches():
        yield server.answer(x)
def every(server):
    return tuple(server.answer(x) for x in batches())
def work():
    server, others, kept = Server(), [Server(), Server()], []
    LINES
"""
)
READ = "\n    kept.append(o.sum().item())\nreturn kept"
KEEPS = {
    "return [server.answer(x) for x in batches()]": "[server.answer(x).clone() for x in batches()]",
    "return {'all': [server.answer(x) for x in batches()], 'n': 3}": "[server.answer(x).clone() for x in batches()]",
    "kept = list(stream(server))\nreturn kept": "[y.clone() for y in stream(server)]",
    "return list(map(server.answer, batches()))": "[y.clone() for y in map(server.answer, batches())]",
    "return every(server)": "tuple((server.answer(x).clone() for x in batches()))",
    f"for o in list(stream(server)):{READ}": "[y.clone() for y in stream(server)]",
}
RIGHT = [
    "return [server.answer(x).clone() for x in batches()]",
    "return [server.answer(x).sum() for x in batches()]",
    "return [other.answer(batches()[0]) for other in others]",
    "return [server.answer(torch.ones(n, 3, device=device)) for n in (1, 2)]",
    "y = server.answer(batches()[0])\nreturn y, [y]",
    f"for o in stream(server):{READ}",
    f"for o in list(map(lambda x: server.answer(x).clone(), batches())):{READ}",
]


def _asked(lines: str, path: Path) -> pgk.Diagnosis:
    return pgk.diagnose(run(PROGRAM.replace("LINES", lines.replace("\n", "\n    ")), path)["work"])


@pytest.mark.parametrize("lines", KEEPS)
def test_a_list_that_is_made_at_once_is_told_without_a_name(lines: str, tmp_path: Path) -> None:
    # GIVEN a program that makes a list of what replays give, and gives it back, or goes through it WHEN it is asked
    found = _asked(lines, tmp_path)
    # THEN what makes it is told, with copies
    assert [(f.code, f.fix.partition("after   ")[2]) for f in found.failures] == [("output-alias", KEEPS[lines])], found


@pytest.mark.parametrize("lines", RIGHT)
def test_a_list_of_what_no_replay_writes_over_is_none(lines: str, tmp_path: Path) -> None:
    # GIVEN one that keeps copies, numbers, or one result of each graph WHEN it is asked THEN nothing is told
    found = _asked(lines, tmp_path)
    assert not found.failures, found


GIVEN = """
import collections, queue
class Server:
    def __init__(self):
        self.x, self.graph = torch.zeros(4, device=device), cuda.CUDAGraph()
        self.x * 2
        with cuda.graph(self.graph):
            self.y = self.x * 2
    def run(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.y
class Log:
    def __init__(self):
        self.rows = collections.defaultdict(list)
    def log(self, **values):
        for name, value in values.items():
            self.rows[name].append(value)
def data():
    for i in range(4):
        yield torch.full((4,), float(i)).to(device)
def main():
    server, waiting, logger = Server(), queue.Queue(), Log()
    LINES
"""
LATER = "out = []\n    while not waiting.empty():\n        out.append(waiting.get())\n    return torch.stack(out).cpu()"
AWAY = {
    "queue": ("for x in data():\n        waiting.put(server.run(x))\n    " + LATER, "server.run(x)"),
    "method": (
        "for x in data():\n        logger.log(y=server.run(x))\n    return torch.stack(logger.rows['y']).cpu()",
        "server.run(x)",
    ),
    "map": ("return torch.stack(list(map(server.run, data()))).cpu()", "list(map(server.run, data()))"),
}


@pytest.mark.parametrize("way", AWAY)
def test_a_result_that_is_given_away_is_told_where_its_call_stands(way: str, tmp_path: Path) -> None:
    # GIVEN results that go to a queue, to another object's method or through map(), with data of a generator
    lines, call = AWAY[way]
    new = "[y.clone() for y in map(server.run, data())]" if way == "map" else f"{call}.clone()"
    # WHEN it is diagnosed, and again as its words say
    found = [_given(text, tmp_path) for text in (lines, lines.replace(call, new))]
    # THEN the call is told, and no line of the generator's; with copies nothing is
    whole = (f"waiting.put({call})", f"waiting.put({new})") if way == "queue" else (call, new)  # by what it has then
    assert [(f.code, f.fix) for f in found[0]] == [("output-alias", "before  {}\nafter   {}".format(*whole))]
    assert found[1] == []


def _given(lines: str, tmp_path: Path) -> list[Any]:
    names = run(GIVEN.replace("LINES", lines), tmp_path)
    return [*pgk.diagnose(names["main"]).failures]
