"""A ``queue.SimpleQueue`` is seen as any queue; and what each round around a step takes at once is kept nowhere."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.restore.simple_queues import list_of, refill, waiting_in
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
import collections, queue
x, out = torch.zeros(2, device=device), MADE
graph = cuda.CUDAGraph()
with cuda.graph(graph):
    y = x * 2
def step(v):
    x.copy_(v)
    graph.replay()
    out.PUT(y)
def take():
    return out.GET.tolist()
def main():
    got = []
    for n in range(4):
        step(torch.full((2,), float(n)))
        TAKEN
    while len(got) < 4:
        got.append(take())
    return got
"""
FORMS = {
    "a simple queue": ("queue.SimpleQueue()", "put", "get()"),
    "a queue": ("queue.Queue()", "put", "get()"),
    "a list": ("[]", "append", "pop()"),
    "a deque": ("collections.deque()", "append", "popleft()"),
}
LATE = {
    "behind the loop": "pass",
    "one round late": "if n: got.append(out.GET.tolist())",
    "as it is": "got.append(out.GET)",
}
AT_ONCE = {
    "where it stands": "got.append(out.GET.tolist())",
    "by a name": "z = out.GET; got.append(z.tolist())",
    "by a helper": "got.append(take())",
}


def _found(tmp_path: Path, what: str, form: str, taken: str) -> list[tuple[str, str]]:
    made, put, get = FORMS[form]
    text = PROGRAM.replace("TAKEN", taken).replace("MADE", made).replace("PUT", put).replace("GET", get)
    names = load(PRELUDE + text, tmp_path / "program.py")
    args = (torch.ones(2),) if what == "step" else ()
    found = pgk.diagnose(names[what], *args).failures
    return [(f.code, f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize("what", ["step", pytest.param("main", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("late", ["behind the loop", pytest.param("one round late", marks=pytest.mark.sweep)])
def test_results_in_a_simple_queue_are_told(late: str, what: str, tmp_path: Path) -> None:
    # GIVEN a queue of Python's that has no list of its own, whose entries wait over a replay WHEN diagnosed
    found = _found(tmp_path, what, "a simple queue", LATE[late])
    # THEN the line that puts them there is told
    assert found == [("output-alias", "out.put(y.clone())")]


@pytest.mark.parametrize(
    "form", [each if each == "a simple queue" else pytest.param(each, marks=pytest.mark.sweep) for each in FORMS]
)
@pytest.mark.parametrize(
    "taken", [each if each == "where it stands" else pytest.param(each, marks=pytest.mark.sweep) for each in AT_ONCE]
)
def test_what_each_round_takes_at_once_is_none_of_the_step(taken: str, form: str, tmp_path: Path) -> None:
    # GIVEN a loop that takes behind each call what the step has put WHEN the step is diagnosed THEN nothing is told
    assert _found(tmp_path, "step", form, AT_ONCE[taken]) == []


@pytest.mark.sweep
@pytest.mark.parametrize("form", [each for each in FORMS if each != "a list"])
@pytest.mark.parametrize("late", LATE)
def test_what_is_taken_late_or_kept_is_told_of_the_step(late: str, form: str, tmp_path: Path) -> None:
    # GIVEN a loop that takes a result behind further replays, or keeps it as it is
    found = _found(tmp_path, "step", form, LATE[late])
    # THEN the line that puts it there is told
    assert found == [("output-alias", f"out.{FORMS[form][1]}(y.clone())")]


@pytest.mark.sweep
def test_a_queue_that_a_loop_empties_is_none(tmp_path: Path) -> None:
    # GIVEN results in a queue, and a loop of the same round that goes on until it is empty
    taken = "\n        ".join(("while not out.empty():", "    got.append(out.get().tolist())"))
    # WHEN the step is diagnosed THEN nothing is told; nor of the whole
    assert _found(tmp_path, "step", "a simple queue", taken) == _found(tmp_path, "main", "a queue", taken) == []


def test_a_step_that_puts_tensors_into_a_simple_queue_is_told_and_the_queue_is_as_before() -> None:
    # GIVEN no graph at all, and a queue that has something
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()
    held.put(first := torch.zeros(2))

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        held.put(y)
        return y

    # WHEN diagnosed
    found = pgk.diagnose(step, torch.ones(2)).failures

    # THEN it is told as of any queue, and nothing is left in it
    assert [f.code for f in found] == ["host-counter"]
    assert waiting_in(held) == [first]


def test_what_waits_is_seen_and_nothing_is_taken() -> None:
    # GIVEN entries of which some are taken WHEN looked at
    held: queue.SimpleQueue[int] = queue.SimpleQueue()
    for n in range(5):
        held.put(n)
    first = list_of(held)
    assert (held.get(), held.get(), waiting_in(held)) == (0, 1, [2, 3, 4])

    # THEN they are there in their order; it has one list; others can be put in their place
    assert (list_of(held) is first, held.qsize()) == (True, 3)
    refill(held, [7, 8])
    assert (waiting_in(held), held.get(), held.get(), held.empty()) == ([7, 8], 7, 8, True)
