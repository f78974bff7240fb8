"""Launches among other work: patches never overtake them, and streams and events of the user's keep their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paramgraph_kit.driver.sim import cuda_twin
from paramgraph_kit.driver.sim.driver import SimDriver
from paramgraph_kit.launch.generate import Form
from tests.integration.launch_bench import (
    assert_same,
    codes,
    launcher_of,
    launches,
    moved,
    variants,
)
from tests.integration.test_launch_sim import one_and_itself

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


class Spy(SimDriver):
    """The simulator's driver, noting what its executables and streams are told."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, ...]] = []

    def join_streams(self, before: int, after: int) -> None:
        self.log.append(("join", before, after))
        super().join_streams(before, after)

    def instantiate(self, *args: Any, **how: Any) -> Any:
        made = super().instantiate(*args, **how)
        patch, launch = made.patch, made.launch

        def logged_patch(addresses: Sequence[int]) -> None:
            self.log.append(("patch",))
            patch(addresses)

        def logged_launch(stream: int) -> None:
            self.log.append(("launch", stream))
            launch(stream)

        made.patch, made.launch = logged_patch, logged_launch
        return made


def test_addresses_are_patched_only_when_one_has_moved() -> None:
    # GIVEN a function without outputs of its own, so that only its input's address can move
    def function(x: Tensor) -> tuple[Tensor]:
        return (x.mul_(2),)

    spy = Spy()
    launcher = launcher_of(function, driver=spy)
    x, y = moved(8), moved(8)
    # WHEN it is called with x, x, y, y, x
    for tensor in (x, x, x, y, y, x):
        launcher([tensor])
    # THEN it is patched when the address is another one, and launched each time
    one, both = [("launch", 0)], [("patch",), ("launch", 0)]
    assert spy.log == both + one + both + one + both
    (variant,) = variants(launcher)
    assert (variant.state.launches, variant.state.patches) == (5, 3)


def test_a_patch_never_overtakes_a_launch_on_another_stream() -> None:
    # GIVEN an executable that was launched on one stream
    spy = Spy()
    launcher = launcher_of(one_and_itself, driver=spy)
    first, second = cuda_twin.Stream(), cuda_twin.Stream()
    for stream in (first, first, second, second, first):
        # WHEN it is called on another one THEN that one first waits for the launch before
        with cuda_twin.stream(stream):
            x = moved(8)
            assert_same(launcher([x]), one_and_itself(x))
    a, b = first.cuda_stream, second.cuda_stream
    assert [entry for entry in spy.log if entry[0] != "patch"] == [
        ("launch", a),
        ("join", a, b),
        ("launch", b),
        ("launch", b),
        ("join", b, a),
        ("launch", a),
    ]
    at = spy.log.index(("join", a, b))
    assert spy.log[at : at + 3] == [("join", a, b), ("patch",), ("launch", b)]


def test_a_launch_takes_its_place_on_the_streams_that_its_code_uses() -> None:
    # GIVEN code that forks to a stream of the user's and records an event of the user's there
    spy, side, done = Spy(), cuda_twin.Stream(), cuda_twin.Event()

    def function(x: Tensor) -> tuple[Tensor]:
        here = cuda_twin.current_stream()
        side.wait_stream(here)
        with cuda_twin.stream(side):
            left = x.sin()
            done.record()
        right = x.cos()
        here.wait_stream(side)
        return (left * right,)

    launcher = launcher_of(function, driver=spy)
    # WHEN it is called
    for _ in range(3):
        x = moved(8)
        expected, done.recorded_at = function(x), None
        assert_same(launcher([x]), expected)
        # THEN the event has happened and may be waited for, outside of any capture
        assert done.recorded_at is not None
        done.synchronize()
        cuda_twin.current_stream().wait_event(done)
    # AND launches come after what was queued on that stream, and before what is queued on it later
    assert launches(launcher) == 2
    (variant,) = variants(launcher)
    assert [node.deps for node in variant.captured.recording.nodes] == [(), (), (0, 1)]
    order = [entry for entry in spy.log if entry[0] != "patch"]
    assert order == 2 * [("join", side.cuda_stream, 0), ("launch", 0), ("join", 0, side.cuda_stream)]


def test_a_failed_capture_leaves_the_events_of_the_user_as_they_were() -> None:
    # GIVEN code that records an event and cannot be captured
    done = cuda_twin.Event()

    def function(x: Tensor) -> tuple[Tensor]:
        done.record()
        return (x * float(x.sum()),)

    launcher = launcher_of(function)
    # WHEN it is called THEN whoever waits for the event is not told of a capture
    for _ in range(2):
        launcher([moved(8)])
        done.synchronize()
    assert codes(launcher) == ["capture-failed"]


def test_an_event_that_measures_time_is_in_no_graph() -> None:
    # GIVEN code that measures itself
    start, end = cuda_twin.Event(enable_timing=True), cuda_twin.Event(enable_timing=True)

    def function(x: Tensor) -> tuple[Tensor]:
        start.record()
        y = x * 2
        end.record()
        return (y,)

    launcher = launcher_of(function)
    # WHEN it is called THEN it runs as it is, with the reason, and time goes on
    for _ in range(3):
        launcher([moved(8)])
        assert start.elapsed_time(end) > 0
    assert (launches(launcher), codes(launcher)) == (0, ["timed-event"])


def test_two_forms_of_one_launch_are_told_apart_though_what_changes_in_them_lies_at_the_same_places() -> None:
    # GIVEN one variant that is launched in two forms: of each the same two tensors are left out, in other places
    launcher = launcher_of(lambda a, b, c: (a * 2 + b * 3 + c * 5,))
    p, q, r = (moved(64, seed=k) for k in range(3))
    for _ in range(3):
        launcher([p, q, r])
    variant = launcher.settled([p, q, r])
    assert variant is not None
    last = launcher.launch_as(Form(static={1: p, 2: q}), variant, launcher)
    first = launcher.launch_as(Form(static={0: p, 1: q}), variant, launcher)
    # WHEN they take turns with the same tensor, and the ordinary form with all three THEN each computes its own
    for _ in range(3):
        assert_same(last([r]), (r * 2 + p * 3 + q * 5,))
        assert_same(first([r]), (p * 2 + q * 3 + r * 5,))
        assert_same(launcher([p, r, q]), (p * 2 + r * 3 + q * 5,))
