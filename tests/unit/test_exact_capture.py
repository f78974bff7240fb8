"""Two captures of one function, asked for what stands in the other's place: memory, mirrors, and who launched what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paramgraph_kit.capture import pair
from paramgraph_kit.capture.pair import (
    Captured,
    InputSpec,
    Kind,
    Output,
    _mirror,
    alignment_of,
    capture_pair,
    check_alike,
    describe,
    launched_by,
)
from paramgraph_kit.driver.api import Phantom, Recording
from paramgraph_kit.driver.sim.driver import SimDriver
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import WordKind
from tests.integration.launch_bench import DRIVER, boxed, moved

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


class Surveyor(SimDriver):
    """A driver that knows only of surveyed captures what they allocated, as the GPU's does."""

    def record(self, run: Any, phantom: Phantom, *, survey: bool = True, eager: bool = False) -> Recording:
        recording = super().record(run, phantom, survey=survey, eager=eager)
        if not survey:
            recording.allocations = []
        return recording


def plainly(captured: Captured) -> Any:
    """What it found, but for addresses."""
    words = [
        [(w.offset, w.kind, w.allocation, w.delta) for w in node if w.kind is WordKind.POINTER]
        for node in captured.words
    ]
    sizes = [(a.size, a.born, a.died) for a in captured.allocations]
    return words, sizes, captured.outputs, captured.input_positions, captured.scalars, captured.specs


def several(x: torch.Tensor, number: float, y: torch.Tensor) -> Any:
    twice = x * 2
    return twice + y[: x.shape[0]], (twice * number).sum(), x, y[3:]


def in_place(x: torch.Tensor) -> Any:
    return (x.add_(1),)


@pytest.mark.parametrize(("function", "size"), [(several, 64), (several, 3), (in_place, 5)])
def test_what_the_second_capture_allocated_is_known_from_the_first(function: Any, size: int) -> None:
    # GIVEN a driver that surveys the first capture only WHEN a function is captured with it
    inputs: list[Any] = [moved(size), 2.5, moved(size + 9)][: 1 if function is in_place else 3]
    specs = describe(DRIVER, inputs)
    scalars = [x for x in inputs if not isinstance(x, torch.Tensor)]
    found = [capture_pair(driver, boxed(function), specs, scalars) for driver in (SimDriver(), Surveyor())]
    # THEN it has found what one has that surveys both
    assert plainly(found[0]) == plainly(found[1])
    assert any(word for node in found[1].words for word in node)
    assert (found[1].input_positions, found[1].scalars) == (([0], ()) if function is in_place else ([0, 2], (2.5,)))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_inputs_are_mirrored_at_their_alignment_and_no_better(alignment: int, side: int) -> None:
    # GIVEN an input that is aligned to so many bytes, and one as the allocator gives it WHEN mirrored
    specs: list[InputSpec | None] = [
        InputSpec((3,), (1,), torch.uint8, alignment, 3),
        None,
        InputSpec((2, 2), (1, 2), torch.float32, 256, 16, (False, True)),
    ]
    with DRIVER.phantom(side) as phantom:
        mirrors, inputs = _mirror(DRIVER, phantom, specs, ["number"], side, [0, 0, 0])
        # THEN each is where it says, of that layout, aligned to just that
        assert [(a.size, a.born, a.died) for a in mirrors] == [(3, 0, None), (16, 0, None)]
        assert inputs[1] == "number"
        assert [alignment_of(a.address) for a in mirrors] == [alignment, 256]
        for mirror, x, spec in zip(mirrors, inputs[::2], specs[::2], strict=True):
            assert spec is not None
            assert (DRIVER.address_of(x), tuple(x.shape), x.stride(), x.dtype) == (
                mirror.address,
                spec.size,
                spec.stride,
                spec.dtype,
            )
            assert x.is_neg() is spec.bits[1]
        inputs.clear()
        del x


def test_the_operation_that_launches_a_node_is_named_with_how_many_came_before() -> None:
    # GIVEN code with views, which launch nothing, and operations that come again WHEN asked who launched a node
    def function(x: torch.Tensor) -> Any:
        y = x.view(2, 2) * 2
        z = y.t().contiguous() + 1
        return ((z * z).exp() * 3,)

    x = moved(4)
    specs = describe(DRIVER, [x])
    found = [launched_by(DRIVER, boxed(function), specs, [], n) for n in range(7)]
    # THEN it is this one
    assert [each and (each[0]._schema.name, each[1]) for each in found] == [
        ("aten::mul", 0),
        ("aten::clone", 0),
        ("aten::add", 0),
        ("aten::mul", 1),
        ("aten::exp", 0),
        ("aten::mul", 2),
        None,
    ]


def test_outputs_look_as_an_ordinary_call_s_do() -> None:
    # GIVEN outputs of all kinds, and results of an ordinary call
    device = DRIVER.device
    good = moved(2, 3)
    captured: Any = Captured(None, [], [], [], [])  # type: ignore[arg-type]  # outputs are all that is looked at
    fresh = Output(Kind.FRESH, 0, 0, (2, 3), (3, 1), torch.float32)
    viewed = Output(Kind.INPUT, 0, 0, (2, 3), (3, 1), torch.float32)
    captured.outputs = [fresh, viewed, Output(Kind.ARGUMENT, 0), Output(Kind.FIXED, value=3)]
    seed = torch.tensor(3)
    # WHEN they are alike, or one is a seed on the host, THEN nothing is said, whatever the others are
    check_alike(captured, [good, good, None, 4], device)
    check_alike(captured, [seed, seed, 1, None], device)
    # AND where one is not, it is refused by its number
    others: list[Any] = [
        good.t().contiguous(),
        good.t().contiguous().t(),
        good.to(torch.float64),
        torch.zeros(2, 3),
        torch.tensor(3.0),
        torch.tensor([3]),
        torch.tensor(3j),
        None,
    ]
    for number in (0, 1):
        for other in others:
            results = [good, good, None, 3]
            results[number] = other
            with pytest.raises(RefusedError) as caught:
                check_alike(captured, results, device)
            assert caught.value.reason.code == "unstable-capture"
            assert caught.value.reason.message.startswith(f"output {number} is of another shape, layout or type")


class Asked(SimDriver):
    """A driver that notes how it is asked to record, and draws so many random numbers as it is told."""

    def __init__(self, drawn: int = 0) -> None:
        super().__init__()
        self.how: list[tuple[bool, bool]] = []
        self.discarded: list[Recording] = []
        self.drawn = drawn
        really = self.discard

        def discard(recording: Recording) -> None:
            self.discarded.append(recording)
            really(recording)

        vars(self)["discard"] = discard

    def record(self, run: Any, phantom: Phantom, *, survey: bool = True, eager: bool = False) -> Recording:
        self.how.append((survey, eager))
        recording = super().record(run, phantom, survey=survey, eager=eager)
        recording.random_increment = self.drawn
        return recording


@pytest.mark.parametrize(
    ("eager", "anchored", "offsets"),
    [(False, 0, [0, 0, 0]), (True, 0, [256] * 3), (True, 2, [0, 0, 256]), (True, 3, [0, 0, 0])],
)
def test_two_captures_are_made_and_told_one_after_the_other(
    eager: bool, anchored: int, offsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN code of torch's own kernels or of generated ones, whose first inputs may have to begin their storage
    told: list[str] = []
    mirrored: list[tuple[int, list[int]]] = []

    def mirror(*given: Any) -> Any:
        mirrored.append((given[4], list(given[5])))
        return _mirror(*given)

    monkeypatch.setattr(pair, "now", told.append)
    monkeypatch.setattr(pair, "_mirror", mirror)
    driver = Asked()
    inputs: list[Any] = [moved(64), moved(64), moved(64)]
    # WHEN captured
    captured = capture_pair(
        driver, boxed(lambda x, y, z: [x + y * z]), describe(driver, inputs), [], (), 7, eager=eager, anchored=anchored
    )
    # THEN the first is surveyed, the second is elsewhere in its storages, and each is told
    assert driver.how == [(True, eager), (False, eager)]
    assert mirrored == [(0, [0, 0, 0]), (1, offsets)]
    count = len(captured.recording.nodes)
    assert told == [
        "captures it, for the first time",
        "captures it, for the second time",
        f"looks for addresses in {count} kernels",
    ]
    # AND the second is thrown away, what the code returns is a list, and what is drawn is what was seen outside
    assert driver.discarded != [captured.recording]
    assert len(driver.discarded) == 1
    assert not captured.returns_tuple
    assert captured.recording.random_increment == 7


def test_what_a_capture_draws_counts_and_a_failure_leaves_nothing_behind() -> None:
    # GIVEN a capture that draws WHEN made THEN that is what each launch draws
    inputs: list[Any] = [moved(8)]
    driver = Asked(drawn=4)
    captured = capture_pair(driver, boxed(lambda x: (x + 1,)), describe(driver, inputs), [], (), 7)
    assert captured.recording.random_increment == 4
    assert captured.returns_tuple
    # AND where the two give other results, both are thrown away
    driver, results = Asked(), iter((1, 2))
    with pytest.raises(RefusedError, match="returned different values"):
        capture_pair(driver, boxed(lambda x: (x + 1, next(results))), describe(driver, inputs), [])
    assert len(driver.discarded) == 2
