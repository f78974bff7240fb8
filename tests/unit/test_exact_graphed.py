"""One captured step, question by question: whose gradients are there, what a launch is given, what it leaves where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils import _pytree as pytree

import paramgraph_kit as pgk
from paramgraph_kit.capture.pair import InputSpec
from paramgraph_kit.launch.generate import launch_function
from paramgraph_kit.step import graphed
from paramgraph_kit.step import step as steps
from paramgraph_kit.step.capture import record_step
from paramgraph_kit.step.graphed import MISFIT, Graphed
from paramgraph_kit.step.verify import Checked
from tests.integration.launch_bench import DRIVER
from tests.unit.test_exact_steps import ones


class Kept:
    """Gradients that tell who asks for them, and whether one was made anew."""

    def __init__(self, tensors: list[torch.Tensor], renewed: bool = False) -> None:
        self.tensors, self.renewed = tensors, renewed
        self.asked: list[Any] = []

    def free(self, parameters: Any) -> tuple[tuple[int, ...], bool]:
        self.asked.append(parameters)
        return tuple(map(DRIVER.address_of, self.tensors)), self.renewed


def bare(**fields: Any) -> Any:
    """A captured step of these parts alone, which returns its first tensor."""
    made = object.__new__(Graphed)
    order = SimpleNamespace(results=[0], plain=[None], spec=pytree.tree_flatten(ones(1))[1])
    parts = {
        "_driver": DRIVER,
        "_recorded": SimpleNamespace(spent=[], first=[], last=[], order=order),
        "_kept": Kept([]),
        "_parameters": [],
        "_there": False,
        "_settled": True,
        "_entering": [],
        "_launch": lambda inputs: [ones(1)],
        "_aliases": {},
        "_written": [],
        "_written_arguments": [],
        "_to_write": [],
    }
    for name, value in (parts | fields).items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("renewed", [False, True])
def test_a_launch_is_given_gradients_by_address_and_puts_them_where_they_are_not(there: bool, renewed: bool) -> None:
    # GIVEN a step that leaves a gradient, which its parameter has already or not, and that may have to be made anew
    w, kept = torch.nn.Parameter(ones(3)), Kept([ones(3)], renewed)
    if there:
        w.grad = kept.tensors[0]
    given: list[Any] = []

    def launch(inputs: list[Any]) -> list[Any]:
        given.append(inputs)
        return [ones(1)]

    x, h = ones(2), ones(4)
    step = bare(_kept=kept, _parameters=[w], _there=there, _entering=[h], _launch=launch)
    # WHEN launched
    step.launch([x])
    # THEN who may hold it is asked of where it is, and it is there behind the launch
    assert kept.asked == [None if there else [w]]
    assert step._there is (there and not renewed)
    assert w.grad is kept.tensors[0]
    (inputs,) = given
    assert [inputs[0] is x, inputs[1] is h, inputs[2:]] == [True, True, [(DRIVER.address_of(kept.tensors[0]),)]]


def test_a_gradient_that_is_there_is_not_put_there_again() -> None:
    # GIVEN a gradient that is where it belongs by what was asked before WHEN launched THEN nobody assigns it
    w, kept = torch.nn.Parameter(ones(3)), Kept([ones(3)])
    bare(_kept=kept, _parameters=[w], _there=True).launch([])
    assert w.grad is None


def test_a_launch_without_gradients_is_given_tensors_alone_and_what_misfits_leaves_nothing() -> None:
    # GIVEN a step without gradients WHEN launched THEN it is given what it takes
    given: list[Any] = []
    x, left = ones(2), mock.Mock()

    def launch(inputs: list[Any]) -> Any:
        given.append(len(inputs))
        return MISFIT

    step = bare(_launch=launch, _to_write=[left])
    # AND of a launch that was not made nothing is left
    assert step.launch([x]) is MISFIT
    assert given == [1]
    assert not left.put.called
    step = bare(_to_write=[left], _settled=False)
    with mock.patch.object(Graphed, "_settle", return_value=False):
        assert step.launch([x]) is MISFIT
    assert not left.put.called


def test_a_launch_writes_cells_and_lets_autograd_see_what_was_written() -> None:
    # GIVEN a step that writes a tensor of the state, its second argument and its gradient, and leaves one in a cell
    state, x, y, result = ones(2), ones(3), ones(4), ones(5)
    kept, w, cell = Kept([ones(6)]), torch.nn.Parameter(ones(6)), mock.Mock()
    each = (state, x, y, kept.tensors[0])
    before = [t._version for t in each]
    step = bare(
        _kept=kept,
        _parameters=[w],
        _written=[state],
        _written_arguments=[1],
        _to_write=[cell],
        _launch=lambda inputs: [result],
    )
    # WHEN launched THEN these have been written once, and the first argument not
    assert step.launch([x, y]) is result
    assert [t._version - then for t, then in zip(each, before, strict=True)] == [1, 0, 1, 1]
    assert cell.put.mock_calls == [mock.call([result])]


@pytest.mark.parametrize("kept_before", [False, True])
@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_before_the_first_launch_gradients_are_let_go_where_new_ones_come(
    kept_before: bool, renewed: bool, there: bool
) -> None:
    # GIVEN a captured step that was not launched yet, whose gradients other graphs have made, or nobody
    w, old, new = torch.nn.Parameter(ones(3)), ones(3), ones(3)
    w.grad = old
    kept = Kept([new] if kept_before else [], renewed)
    seen: list[Any] = []

    def release() -> None:
        seen.append(w.grad)
        kept.tensors = [new]

    driver = SimpleNamespace(release_cached=release)
    step = bare(_kept=kept, _parameters=[w], _settled=False, _there=there, _driver=driver)
    with mock.patch.object(Graphed, "_aligned", return_value=True):
        # WHEN settled
        assert step._settle([])
    # THEN an old gradient is gone before memory is given back, where there will be a new one
    assert seen[0] is (old if kept_before else None)
    assert kept.asked == [None if there else [w]]
    # AND it is known whether the gradients are there
    assert w.grad is (old if kept_before else new)
    assert step._there is (not kept_before or (there and not renewed))
    assert step._settled is True


def test_a_step_that_is_aligned_otherwise_is_not_settled() -> None:
    # GIVEN / WHEN / THEN
    step = bare(_settled=False, _driver=None)
    with mock.patch.object(Graphed, "_aligned", return_value=False):
        assert step._settle([]) is False
    assert step._settled is False


@pytest.mark.parametrize(
    ("specs", "offsets", "aligned"),
    [
        ((256, 256), (0, 0), True),
        ((256, None), (0, 1), True),
        ((4, 256), (1, 0), True),
        ((256, 256), (1, 0), False),
        ((256, 256), (0, 1), False),
        ((4, 256), (0, 0), False),
    ],
)
def test_what_a_launch_reads_lies_as_what_was_captured_did(
    specs: tuple[int | None, int | None], offsets: tuple[int, int], aligned: bool
) -> None:
    # GIVEN an argument and a tensor of a cell, each aligned so far, and how those of the capture were, and a gradient's
    x, h = (ones(64)[at:] for at in offsets)
    found = [None if n is None else InputSpec((64,), (1,), torch.float32, n, 256) for n in (*specs, 2)]
    step = bare(_entering=[h], variant=SimpleNamespace(captured=SimpleNamespace(specs=found)))
    # WHEN asked THEN both count, and nothing behind them
    assert step._aligned([x]) is aligned


def test_cells_fit_where_each_holds_its_like_and_gradients_are_there_or_may_be_put() -> None:
    # GIVEN a step's gradients, where they are or not, what its cells hold of them, and what of others
    def fits(kept: list[Any], are: bool, again: list[Any], entering: list[Any] | None) -> tuple[bool, bool, Any]:
        cells = [SimpleNamespace(entering=lambda held=held: held) for held in again]
        step = bare(
            _kept=Kept(kept),
            _gradients=SimpleNamespace(are=lambda known: are),
            _again=cells,
            _enters=SimpleNamespace(now=lambda: entering),
        )
        return step._cells_fit(), step._there, step._entering

    x = ones(1)
    # WHEN asked THEN gradients that are there are asked nothing more, and others must be of the kind
    assert fits([x], True, [None], [x]) == (True, True, [x])
    assert fits([x], False, [[x], [x]], [x]) == (True, False, [x])
    assert fits([x], False, [[x], None], [x]) == (False, False, [])
    assert fits([], True, [[x]], []) == (True, False, [])
    assert fits([], True, [None], []) == (False, False, [])
    assert fits([x], True, [[x]], None) == (False, True, [])


@pytest.mark.parametrize(("failed", "equal"), [(None, True), (None, False), ("wrong", False)])
def test_a_comparison_counts_once_and_gradients_are_made_anew_for_it(
    failed: str | None, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step that is launched beside its ungraphed code
    done: list[str] = []

    class Comparison:
        def __init__(self, *parts: Any) -> None:
            done.append("begun")

        def run(self, call: Any, launched: Any) -> Any:
            done.append("run")
            return "result", failed, equal

    monkeypatch.setattr(graphed, "Comparison", Comparison)
    scheduler = SimpleNamespace(step=done.append)
    kept = SimpleNamespace(forget=lambda: done.append("forgotten"), tensors=[])
    streams: Any = SimpleNamespace(
        join_streams=lambda *which: done.append(f"joined {which}"), current_stream=lambda: 7, address_of=None
    )
    variant = SimpleNamespace(captured=SimpleNamespace(specs=[], recording=SimpleNamespace(streams=(71,))))
    step = bare(_kept=kept, _driver=streams, variant=variant, checked=Checked(), _others=[], _again=[])
    step._guard = SimpleNamespace(tensors=[])
    step._recorded.first, step._recorded.last = [(scheduler, ("first",), {})], [(scheduler, ("last",), {})]
    # WHEN compared THEN in this order, and it is settled again before the next launch
    assert step.compared([], lambda: None, None) == "result"
    assert done == ["joined (71, 7)", "first", "forgotten", "begun", "run", "last"]
    assert step._settled is False
    found = step.checked.verified, step.checked.unordered, step.checked.failed
    assert found == (int(equal), int(not equal and failed is None), failed)


def test_executables_are_freed_and_the_recording_is_given_back() -> None:
    # GIVEN a captured step of two stages WHEN destroyed THEN all of it is, behind the lock of its launches
    done: list[Any] = []
    lock = mock.MagicMock()
    executables = [SimpleNamespace(destroy=lambda n=n: done.append((n, lock.__enter__.called))) for n in (1, 2)]
    recording = mock.sentinel.recording
    variant = SimpleNamespace(
        state=SimpleNamespace(lock=lock), executables=executables, captured=SimpleNamespace(recording=recording)
    )
    bare(variant=variant, _driver=SimpleNamespace(discard=done.append)).destroy()
    assert done == [(1, True), (2, True), recording]


# -- what is known once it is captured


class Counted(torch.nn.Module):
    """A weight that a step trains, an average that is written, a hidden state that is carried on."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(ones(4))
        self.mean: torch.Tensor
        self.register_buffer("mean", ones(4))
        self.h = ones(4)


def captured_step(monkeypatch: pytest.MonkeyPatch, **module: Any) -> tuple[Counted, Graphed]:
    model = Counted()

    def train(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        model.w.grad = None
        loss = (model.w * x * model.h).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.no_grad():
            model.mean += x
            y += 1
        model.h = model.h * 2
        return loss.detach(), model.mean[1:], model.mean

    for name, value in module.items():
        monkeypatch.setattr(graphed, name, value)
    step: Any = pgk.parameterize(train, state=(model,), verify="off")
    for _ in range(2):
        step(ones(4), ones(4))
    ((graph,),) = step._graphs.values()
    return model, graph


def test_of_a_captured_step_it_is_known_what_is_put_where(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that leaves a gradient, a hidden state, an average, a view of that and a written argument
    looks = iter((1000.0, 1007.0))
    model, graph = captured_step(monkeypatch, time=SimpleNamespace(perf_counter=lambda: next(looks)))
    # WHEN captured THEN its gradient is on memory that is used again, and is not there yet
    assert (graph._there, graph._settled) == (False, False)
    assert [cell.place for cell in graph._again] == ["model.w.grad"]
    assert [cell.place for cell in graph._others] == ["model.h"]
    assert [cell.place for cell in graph._to_write] == ["model.h"]
    assert [p is model.w for p in graph._parameters] == [True]
    # AND the average and the second argument are written, and of two results in the average one is all of it
    assert [t is model.mean for t in graph._written] == [True]
    assert graph._written_arguments == [1]
    (alias,) = graph._aliases.values()
    assert (alias.base, alias.size, alias.offset) == (id(model.mean), (3,), 1)
    # AND making it has taken what the clock says
    assert graph.variant.prepared_s == 7


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_s_launch_asks_for_no_switches_and_calls_schedulers_where_there_are_some(
    scheduled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step, with a scheduler that is called before its kernels or without WHEN captured
    launch, scheduler = mock.Mock(side_effect=launch_function), mock.Mock()

    def record(*parts: Any, **how: Any) -> Any:
        recorded = record_step(*parts, **how)
        recorded.first = [(scheduler, (), {})] * scheduled
        return recorded

    monkeypatch.setattr(steps, "record_step", record)
    _, graph = captured_step(monkeypatch, launch_function=launch)
    # THEN its launch takes the last input, the gradient, by address, and asks for nothing that its key tells
    form = launch.call_args.args[-1]
    inputs = len(graph.variant.captured.specs)
    assert (form.together, form.switched) == (range(inputs - 1, inputs), True)
    assert (form.before is not None) is scheduled
    if scheduled:
        form.before()
        assert scheduler.step.mock_calls == [mock.call()]
