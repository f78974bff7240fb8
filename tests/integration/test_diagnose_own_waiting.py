"""Results that wait in a queue, or in a list, until a line takes them: a replay in between writes over them."""

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
import asyncio, collections, queue
class Server:
    def __init__(self):
        self.w, self.x = torch.eye(2, device=device), torch.zeros(2, device=device)
        self.waiting = MADE
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x @ self.w
    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.waiting.PUT(ROW)
    def take(self):
        return self.waiting.GET[0].tolist()
def main():
    server, got = Server(), []
    for n in range(4):
        server.step(torch.full((2,), float(n)))
        AT_ONCE
    for _ in range(4 - len(got)):
        got.append(server.take())
    return got
"""
FORMS = {
    "a queue": ("queue.Queue()", "put", "get()"),
    "a stack": ("queue.LifoQueue()", "put_nowait", "get_nowait()"),
    "a queue of asyncio's": ("asyncio.Queue()", "put_nowait", "get_nowait()"),
    "a list": ("[]", "append", "pop(0)"),
    "a deque": ("collections.deque()", "append", "popleft()"),
}
LATE = "if n > 0: got.append(server.take())"


def _found(tmp_path: Path, form: str, row: str, at_once: str) -> list[tuple[str, str]]:
    made, put, get = FORMS[form]
    text = PROGRAM.replace("MADE", made).replace("PUT", put).replace("GET", get)
    text = PRELUDE + text.replace("ROW", row).replace("AT_ONCE", at_once)
    found = pgk.diagnose(load(text, tmp_path / "program.py")["main"]).failures
    return [(f.code, f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize(
    "form", [each if each == "a queue" else pytest.param(each, marks=pytest.mark.sweep) for each in FORMS]
)
@pytest.mark.parametrize("at_once", ["pass", pytest.param(LATE, marks=pytest.mark.sweep)])
def test_results_that_wait_over_a_replay_are_told(form: str, at_once: str, tmp_path: Path) -> None:
    # GIVEN results that are taken behind further replays, all of them, so that nothing is left at the end
    # WHEN diagnosed
    found = _found(tmp_path, form, "(self.y, 1)", at_once)
    # THEN the line that puts them there is told
    assert found == [("output-alias", f"self.waiting.{FORMS[form][1]}((self.y.clone(), 1))")]


@pytest.mark.parametrize("form", ["a queue", pytest.param("a deque", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    ("row", "at_once"), [("(self.y.clone(), 1)", "pass"), ("(self.y, 1)", "got.append(server.take())")]
)
def test_copies_and_results_that_are_taken_at_once_are_none(form: str, row: str, at_once: str, tmp_path: Path) -> None:
    # GIVEN copies that wait, or results that no replay meets there WHEN diagnosed THEN nothing is told
    assert _found(tmp_path, form, row, at_once) == []


@pytest.mark.sweep
def test_a_list_that_each_round_empties_keeps_nothing(tmp_path: Path) -> None:
    # GIVEN results in a list, which a loop of the same round takes, asked of the step alone
    text = PROGRAM.replace("self.waiting.PUT(ROW)", "return self.y")
    text = text.replace("server.step(torch.full((2,), float(n)))", "got.append(server.step(torch.ones(2)))")
    text = text.replace("AT_ONCE", "while got: print(got.pop())").replace("MADE", "None") + "step = Server().step\n"
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN diagnosed THEN no line keeps them
    assert not pgk.diagnose(names["step"], torch.ones(2)).failures


RING = """
from collections import deque
class Reader:
    def __init__(self, depth):
        self.x, self.busy = torch.zeros(3, device=device), deque()
        self.free = deque((torch.zeros(3).pin_memory(), cuda.Event()) for _ in range(depth))
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x * 2
    def submit(self, x):
        self.x.copy_(x)
        self.graph.replay()
        host, event = self.free[0]
        self.free.rotate()
        host.copy_(self.y, non_blocking=True)
        event.record()
        self.busy.append((host, event))
    def collect(self):
        host, event = self.busy.popleft()
        event.synchronize()
        return host.tolist()
def main():
    reader, got = Reader(DEPTH), []
    for n in range(5):
        if len(reader.busy) == 2:
            got.append(reader.collect())
        reader.submit(torch.full((3,), float(n)))
    while reader.busy:
        got.append(reader.collect())
    return got
"""


def test_memory_of_the_host_that_waits_while_another_of_its_ring_is_filled_is_none(tmp_path: Path) -> None:
    # GIVEN two pieces of pinned memory, each of which is read ahead of its next copy WHEN diagnosed
    found = pgk.diagnose(load(PRELUDE + RING.replace("DEPTH", "2"), tmp_path / "program.py")["main"]).failures
    # THEN nothing is told, though replays run while one waits
    assert not found


@pytest.mark.sweep
def test_memory_of_the_host_that_is_filled_while_it_waits_is_told(tmp_path: Path) -> None:
    # GIVEN a ring of one for two that wait WHEN diagnosed
    found = pgk.diagnose(load(PRELUDE + RING.replace("DEPTH", "1"), tmp_path / "program.py")["main"]).failures
    # THEN the line that puts it there is told
    assert "self.busy.append((host.clone(), event))" in found[0].fix
