"""A whole step's calls: which are only watched, what a new capture is told to be for, and whose gradients it leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.capture.pair import InputSpec
from paramgraph_kit.step import step as steps
from paramgraph_kit.step.observe import Observation, observe
from paramgraph_kit.step.release import release
from tests.unit.test_exact_steps import change, ones, spent_loss, step


def test_four_calls_whose_code_reads_what_nobody_knew_of_are_watched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step whose calls each read a global name that was not known before
    seen: list[Observation] = []

    def unforeseen(*args: Any) -> Observation:
        seen.append(observe(*args))
        seen[-1].unforeseen.add("scale")
        return seen[-1]

    monkeypatch.setattr(steps, "observe", unforeseen)
    made = pgk.parameterize(lambda x: x * 2, state=(), verify="off")
    # WHEN called after its first call THEN four calls are watched alone, and the fifth would be captured
    refused = []
    for _ in range(7):
        made(ones(4))
        refused.append(len(made._launcher.reasons))
    assert refused == [0, 0, 0, 0, 0, 1, 1]
    assert len(seen) == 5


def test_a_capture_is_for_a_place_for_other_arguments_or_the_first() -> None:
    # GIVEN a step without graphs, with one of other arguments, with one of the same that does not fit
    def said(**graphs: Any) -> str:
        made = step()
        made._graphs = graphs
        made._check_number("key")
        return str(made._launcher.differs)

    def graph(difference: Any) -> Any:
        return SimpleNamespace(difference=lambda: difference)

    place = SimpleNamespace(place="self.mode", is_number=False, key="mode")
    # WHEN one is to be captured THEN the report will say what for
    assert said() == ""
    assert said(other=[graph(None)]) == steps.ARGUMENTS
    assert said(other=[graph(None)], key=[graph(place)]) == "self.mode holds something else"
    assert said(key=[graph(None)]) == "its state lies elsewhere"
    assert said(key=[]) == "its state lies elsewhere"


def test_graphs_that_leave_the_same_gradients_have_them_on_the_same_memory() -> None:
    # GIVEN a graph that leaves the gradient of w on memory that is used again, that of v elsewhere, and an empty place
    w, v = ones(3), ones(4)
    spec = InputSpec((3,), (1,), torch.float32, 256, 12)

    def recorded(other: torch.Tensor) -> Any:
        cells = [
            SimpleNamespace(exits=exits, holder=SimpleNamespace(target=target))
            for exits, target in (([], None), ([1], w), ([0], other), ([None, 1], v))
        ]
        specs = [InputSpec((9,), (1,), torch.float32, 256, 36), spec]
        return SimpleNamespace(captured=SimpleNamespace(specs=specs), kept=[1], cells=cells)

    # WHEN it and another one that differs in v alone ask for that memory THEN it is one, of w and of that layout
    made = step()
    first, second = made._kept_for(recorded(v)), made._kept_for(recorded(ones(5)))
    assert first is second
    assert list(made._kept) == [(id(w), ((3,), (1,), torch.float32))]


def test_a_list_that_came_new_is_a_place_of_its_own_and_a_tuple_has_its_parts_in_its_place() -> None:
    # GIVEN a call that has left a result whose backward pass is done in a list, or in a tuple
    def let_go(after: Any) -> list[Any]:
        found: list[Any] = []
        reach = SimpleNamespace(let_go=lambda old, new: found.append(old), holders=[])
        seen: Any = SimpleNamespace(
            changes=[change(None, after)], result=None, after=SimpleNamespace(reach=reach, contents=[])
        )
        release(seen)
        return found

    loss = spent_loss()
    # WHEN released THEN in the place of a list nothing is put
    assert let_go([loss]) == []
    assert [x is loss for x in let_go((loss, 1))] == [True]
    assert [x is loss for x in let_go(loss)] == [True]
