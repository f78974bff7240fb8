"""Events that were recorded in captures which have ended, or were spoiled: whoever waits for one is told so by CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
Wait = Callable[[Any, Any], object]
INVALID, OUTSIDE, BEFORE = (
    "CUDA error: invalid argument",
    "CUDA error: dependency created on uncaptured work in another stream",
    "CUDA error: operation failed due to a previous error during capture",
)


def _on_forked(cuda: Any, event: Any) -> None:
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    side.wait_event(event)


WITHIN: dict[str, Wait] = {
    "wait()": lambda cuda, event: event.wait(),
    "wait_event()": lambda cuda, event: cuda.current_stream().wait_event(event),
    "a stream that was forked": _on_forked,
}
BESIDE: dict[str, Wait] = {
    "a stream of its own": lambda cuda, event: cuda.Stream().wait_event(event),
    "the default stream": lambda cuda, event: event.wait(cuda.default_stream()),
    "query()": lambda cuda, event: event.query(),
}


def _told(cuda: Any, calls: Sequence[Callable[[], object]]) -> list[str]:
    """What each call within a capture raises, in one line, and then the capture itself; "" for nothing."""
    told: list[str] = []

    def tell(call: Callable[[], object]) -> None:
        try:
            call()
            told.append("")
        except RuntimeError as error:
            told.append(str(error).splitlines()[0])

    def capture() -> None:
        with cuda.graph(cuda.CUDAGraph()):
            for call in calls:
                tell(call)

    tell(capture)
    cuda.recover()
    return told


def _ended(cuda: Any, x: torch.Tensor, spoiled: bool = False) -> Any:
    """An event of a capture that is over; ``spoiled`` tells whether that has failed."""
    event = cuda.Event()
    told = _told(cuda, [lambda: x.add_(1), event.record, *[lambda: x.sum().item()] * spoiled])
    assert told[-1] == (BEFORE if spoiled else "")
    return event


@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("name", WITHIN)
def test_a_capture_that_waits_for_an_event_of_an_ended_one_is_spoiled(
    name: str, spoiled: bool, sim: torch.device, cuda: Any
) -> None:
    # GIVEN an event of a capture that has ended WHEN another capture waits for it, twice
    x = torch.ones(2, device=sim)
    event = _ended(cuda, x, spoiled)
    told = _told(cuda, [lambda: x.mul_(2), lambda: WITHIN[name](cuda, event), event.wait])
    # THEN CUDA calls it an invalid argument, hears nothing more, and fails at the end
    assert told == ["", INVALID, BEFORE, BEFORE]


@pytest.mark.parametrize("name", BESIDE)
def test_who_waits_for_it_beside_a_capture_spoils_none(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN the same WHEN what is in no capture waits, or asks, while another one is under way THEN that goes on
    x = torch.ones(2, device=sim)
    event = _ended(cuda, x)
    assert _told(cuda, [lambda: x.mul_(2), lambda: BESIDE[name](cuda, event)]) == ["", INVALID, ""]


def test_an_event_that_is_recorded_anew_is_of_where_that_is(sim: torch.device, cuda: Any) -> None:
    # GIVEN the same event, recorded again outside of captures WHEN a capture waits for it THEN it knows no such work
    x = torch.ones(2, device=sim)
    event = _ended(cuda, x)
    event.record()
    event.wait()
    assert _told(cuda, [lambda: x.mul_(2), event.wait]) == ["", OUTSIDE, BEFORE]
    # GIVEN the same, recorded again within THEN it is one of its own
    assert _told(cuda, [lambda: x.mul_(2), event.record, event.wait]) == ["", "", "", ""]


def test_an_event_of_a_spoiled_capture_under_way_is_an_invalid_argument(sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture under way that something has spoiled, behind an event
    x, event = torch.ones(2, device=sim), cuda.Event()
    spoil: list[Callable[[], object]] = [lambda: x.add_(1), event.record, lambda: x.sum().item()]
    # WHEN it is waited for THEN a stream outside hears that it is none, and its own of the error before
    told = _told(cuda, [*spoil, lambda: cuda.Stream().wait_event(event), event.wait])
    assert told[3:] == [INVALID, BEFORE, BEFORE]

    # GIVEN one more capture, within which it is waited for THEN that is spoiled, too
    said: list[str] = []

    def another() -> None:
        graph = cuda.CUDAGraph()
        with cuda.stream(cuda.Stream()):
            graph.capture_begin(capture_error_mode="relaxed")
            for call in (event.wait, graph.capture_end):
                with pytest.raises(torch.AcceleratorError) as raised:
                    call()
                said.append(str(raised.value).splitlines()[0])

    _told(cuda, [*spoil, another])
    assert said == [INVALID, BEFORE]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda stream, event: stream.wait_event(stream), "'Stream' object has no attribute 'wait'"),
        (lambda stream, event: stream.wait_event(3), "'int' object has no attribute 'wait'"),
        (lambda stream, event: stream.wait_stream(event), "'Event' object has no attribute 'record_event'"),
        (lambda stream, event: event.record(3), "expected stream to be a torch.Stream or torch.cuda.Stream object"),
        (lambda stream, event: event.wait(3), "expected stream to be a torch.Stream or torch.cuda.Stream object"),
        (lambda stream, event: event.elapsed_time(3), "expected other to be a torch.cuda.Event object"),
    ],
)
def test_what_is_no_event_and_no_stream_is_refused_in_torch_s_words(
    call: Callable[[Any, Any], object], words: str, cuda: Any
) -> None:
    # GIVEN a stream and an event WHEN something else is given to them THEN the words are those of a GPU [H200]
    with pytest.raises((AttributeError, RuntimeError)) as told:
        call(cuda.Stream(), cuda.Event())
    assert str(told.value) == words


def test_an_external_event_is_recorded_where_the_capture_is(cuda: Any) -> None:
    # GIVEN a stream that no capture has WHEN an external event is recorded there while another one captures
    elsewhere, event, graph = cuda.Stream(), cuda.Event(external=True), cuda.CUDAGraph()
    with cuda.graph(graph):
        with pytest.raises(RuntimeError, match="the operation cannot be performed in the present state"):
            event.record(elsewhere)
        # THEN that is refused, and the capture goes on: its own streams record it
        event.record()
    graph.replay()
    event.record(elsewhere)
    assert event.query()
