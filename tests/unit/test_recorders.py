"""Lines of what is recorded, from events of calls: operators have none, and get the line that the text leaves them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paramgraph_kit.driver.recorders import Recorders


class Graph(list[str]):
    """Counts what is recorded; each node says which line it is of."""


def _calls(graph: Graph) -> None:
    graph.append("calls")
    graph.extend(["twice", "twice"])


def _operators(graph: Graph) -> None:
    graph += ["first"]
    graph += ["second"]
    len(graph)
    graph += ["third", "third"]
    graph.append("fourth")


def _inside(graph: Graph) -> None:
    def deeper() -> None:
        nonlocal graph
        graph += ["deeper"]

    deeper()
    graph += ["behind"]


def _loop(graph: Graph) -> None:
    for _ in range(3):
        graph += ["looped"]
        graph.append("called")
        graph += ["late"]


def _made(names: list[str]) -> Iterator[str]:
    yield from names


def _called_back(graph: Graph) -> None:
    graph += _made(["first"])
    graph += _made(["second", "second"])
    graph.append("third")


def _unclear(graph: Graph) -> None:
    n = 1
    m = n + 1
    graph += ["?", "?", "?"]
    graph.append(str(m and "known"))


def _recorded(function: Callable[[Graph], None]) -> tuple[Graph, Recorders, int]:
    graph, recorders = Graph(), Recorders()

    def hook(frame: Any, event: str, _: object) -> None:
        recorders.note(frame, event, len(graph))

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        function(graph)
    finally:
        sys.setprofile(before)
    return graph, recorders, function.__code__.co_firstlineno


LINES: dict[Callable[[Graph], None], list[int | None]] = {
    _calls: [1, 2, 2],
    _operators: [1, 2, 4, 4, 5],
    _inside: [3, 6],
    _loop: [2, 3, 4] * 3,
    _called_back: [1, 2, 2, 3],
    _unclear: [None, None, None, 4],
}


@pytest.mark.parametrize("function", LINES, ids=lambda each: each.__name__)
def test_each_node_has_the_line_that_recorded_it_or_none(function: Callable[[Graph], None]) -> None:
    # GIVEN code that records nodes in calls, and in operators that no hook hears of WHEN it runs under one
    graph, recorders, first = _recorded(function)
    # THEN each node has its line, or none where several could be meant
    found = [line and line[1] - first for line in map(recorders.at, range(len(graph)))]
    assert found == LINES[function], list(zip(graph, found, strict=True))
    assert recorders.count == len(graph)
    assert recorders.at(len(graph)) is None
