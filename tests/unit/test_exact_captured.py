"""What becomes of a captured step's tensors: which are state, which lie in it, what is carried on, and their names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.capture.pair import Captured, Kind, Output, capture_pair
from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.step import capture, refusals
from paramgraph_kit.step import step as steps
from paramgraph_kit.step.called import _of_optimizers
from paramgraph_kit.step.capture import Alias, _arrange, _keepable, _state, _Taker, record_step
from paramgraph_kit.step.cells import TENSOR
from paramgraph_kit.step.refusals import check_backward, check_observation
from paramgraph_kit.trace.model import Word, WordKind
from tests.integration.launch_bench import DRIVER
from tests.unit.test_exact_steps import change, gradient, observation, ones, refused
from tests.unit.test_exact_tensors import Holding


def test_what_an_optimizer_keeps_is_called_after_its_parameter() -> None:
    # GIVEN an optimizer that keeps tensors and numbers for a parameter of the state, and for one that is not
    known, unknown = torch.nn.Parameter(ones(2)), torch.nn.Parameter(ones(2))
    optimizer = torch.optim.SGD([known, unknown], lr=0.1)
    momentum, other = ones(2), ones(2)
    optimizer.state[known] = {"momentum_buffer": momentum, "step": 3}
    optimizer.state[unknown] = {"momentum_buffer": other}
    odd = torch.optim.SGD([known], lr=0.1)
    odd.state[known] = [ones(2)]
    reach = SimpleNamespace(objects=[3, optimizer, odd, object()])
    seen: Any = SimpleNamespace(before=SimpleNamespace(reach=reach))
    # WHEN asked THEN the tensor of the first has a name
    found = _of_optimizers(seen, {id(known): ("model.w", known)})
    assert found == {id(momentum): "momentum_buffer of model.w"}


def test_a_result_in_the_state_s_memory_is_told_by_where_it_lies_there() -> None:
    # GIVEN tensors of the state, of which one is empty, and results that are them, lie in them, or do not
    w, empty = ones(4, 4), ones(0)
    state = {id(w): ("w", w), id(empty): ("empty", empty)}
    seen: Any = None
    taker = _Taker(DRIVER, lambda given: None, 0, seen, [], state)
    for each in (w, empty, ones(4), ones(0), torch.ones(2, device="meta"), w[:0]):
        # WHEN taken THEN those that do not, and the state's own, are themselves
        assert taker._alias(each) is each
    # AND the others are told
    assert taker._alias(w.t()[1:]) == Alias(id(w), (3, 4), (1, 4), 1, torch.float32)
    assert taker._alias(w[2, 1:].view(torch.int32)) == Alias(id(w), (3,), (1,), 9, torch.int32)


def test_state_is_what_is_on_the_device_was_not_moved_and_has_memory() -> None:
    # GIVEN tensors that a call found and left, a constant, one of the host, one that was moved, and a wrapper
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapped:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)

        def __init__(self, inner: torch.Tensor) -> None:
            self.held = inner

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["held"], None

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # looser
            raise NotImplementedError(func)

    before, after, constant, moved = ones(1), ones(2), ones(3), ones(4)
    there: Any = torch.ones(5, device="meta")
    wrapped = Wrapped(ones(6))

    def reached(**named: torch.Tensor) -> Any:
        return SimpleNamespace(reach=SimpleNamespace(tensors={id(t): (name, t) for name, t in named.items()}))

    seen: Any = SimpleNamespace(
        names=SimpleNamespace(constants={id(constant): constant}),
        before=reached(before=before, moved=moved, there=there, wrapped=wrapped),
        after=reached(after=after, before_=before),
        changes=[change(ones(1), ones(1), "data", True, target=moved), change(1, 2, "dict", "k", target=after)],
    )
    # WHEN asked THEN it is three of these, by the names that they had first
    found = {name for name, _ in _state(DRIVER, seen).values()}
    assert found == {"before", "after", "a constant of compiled code"}


def test_an_allocation_inside_keeps_its_place_among_those_that_are_left() -> None:
    # GIVEN a step without inputs, with two results on memory of their own, of which the second is a gradient that stays
    words = [(Word(0, WordKind.POINTER, 0, 8), Word(8, WordKind.POINTER, 1, 0))]
    outputs = [Output(Kind.FRESH, n, 0, (4,), (1,), torch.float32) for n in (0, 1)]
    allocations = [RawAllocation((n + 1) << 30, 16, n) for n in range(2)]
    captured = Captured(None, words, allocations, [], outputs, (), [])  # type: ignore[arg-type]
    # WHEN arranged THEN that is the first, as an input, and the other one comes behind it
    found = _arrange(captured, 0, [1])
    assert [each.born for each in found.allocations] == [1, 0]
    assert found.outputs == [replace(outputs[0], source=1), Output(Kind.ARGUMENT, 0)]
    assert [(w.allocation, w.delta) for w in found.words[0]] == [(1, 8), (0, 0)]


def test_two_gradients_stay_where_neither_is_in_the_other_s_way() -> None:
    # GIVEN two gradients on memory of their own, beside outputs that are none WHEN asked THEN both stay
    captured, (first,) = gradient()
    outputs = captured.outputs
    second = replace(first, exits=[2])
    captured.allocations.append(RawAllocation(2 << 40, 512, 0))
    captured.outputs = [outputs[0], Output(Kind.FIXED, value=1), replace(outputs[0], source=1)]
    device = DRIVER.device
    assert _keepable(captured, [first, second], [None, 1, 1], device) == [0, 2]
    # AND one that is a result, that another place holds, or whose memory another result has does not
    assert _keepable(captured, [first, second], [2], device) == [0]
    assert _keepable(captured, [first, replace(second, exits=[0])], [], device) == []
    captured.outputs.append(replace(outputs[0], source=1, offset=8))
    assert _keepable(captured, [first, second], [], device) == [0]
    captured.outputs[3] = replace(outputs[0], source=1, kind=Kind.INPUT)
    assert _keepable(captured, [first, second], [], device) == [0, 2]


def test_a_state_of_a_tensor_and_a_number_is_carried_on() -> None:
    # GIVEN a step whose hidden state is a tensor beside a number WHEN called five times THEN each goes on from the last
    model = torch.nn.Module()
    model.h = (ones(4), 3)  # type: ignore[assignment]

    def run(x: torch.Tensor) -> Any:
        h, n = model.h  # type: ignore[misc]
        model.h = (h * 2, n)  # type: ignore[assignment]
        return h + x

    made: Any = pgk.parameterize(run, state=(model,), verify="off")
    found = [made(ones(4)).tolist()[0] for _ in range(5)]
    assert found == [2, 3, 5, 9, 17]
    assert made._launcher.reasons == []
    ((graph,),) = made._graphs.values()
    # AND what is known of its place holds no tensor
    (cell,) = graph._others
    assert (cell.leaves[0] is TENSOR, cell.leaves[1:], cell.reads) == (True, [3], [0])
    assert graph.variant.state.launches == 3


@pytest.mark.parametrize(("whole", "counted"), [(False, 0), (True, 2)])
def test_arguments_that_are_all_of_their_storage_are_counted(
    whole: bool, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step that is captured for any two arguments, or for whole ones WHEN captured THEN these are told as such
    pair = mock.Mock(side_effect=capture_pair)
    monkeypatch.setattr(capture, "capture_pair", pair)
    monkeypatch.setattr(steps, "record_step", lambda *parts, **how: record_step(*parts, **(how | {"anchored": whole})))
    made: Any = pgk.parameterize(lambda x, y: x * y, state=(), verify="off")
    for _ in range(2):
        made(ones(4), ones(4))
    assert [each.kwargs["anchored"] for each in pair.call_args_list] == [counted]
    assert [graph.anchored for graphs in made._graphs.values() for graph in graphs] == [whole]


def test_results_that_no_graph_gives_are_told_by_what_they_are() -> None:
    # GIVEN results that hold other tensors, that are sparse, or on the host, beside one of the device WHEN asked
    frozen = "a result is on the CPU, where its value would be frozen: return the device's"
    cases: list[tuple[Any, str, str]] = [
        (Holding(ones(2)), "unknown-output", "the step returns a Holding, and a graph returns plain tensors: "),
        (torch.eye(2).to_sparse(), "host-output", frozen),
        (torch.ones(2), "host-output", frozen),
    ]
    for result, code, text in cases:
        # THEN the first that is none is told
        said = refused(check_observation, observation(result=[ones(1), result]))
        assert said is not None
        assert said[0] == code
        assert said[1].startswith(text)
    assert refused(check_observation, observation(result=[ones(1), 3])) is None


def test_hooks_around_a_step_are_asked_for_as_they_are_outside_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN hooks for saved tensors around a step, or none WHEN asked THEN torch is asked for those that count
    for hooks, code in ((None, None), (("pack", "unpack"), "unknown-state")):
        asked = mock.Mock(return_value=hooks)
        monkeypatch.setattr(refusals, "torch_name", lambda name, asked=asked: asked)
        said = refused(check_backward)
        assert (said and said[0]) == code
        assert asked.mock_calls == [mock.call(False)]
