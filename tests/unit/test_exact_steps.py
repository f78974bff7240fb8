"""A step asked question by question: which gradients stay, what moved, what is refused of a watched call."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import paramgraph_kit as pgk
from paramgraph_kit.capture.pair import Captured, InputSpec, Kind, Output
from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.step.capture import (
    Alias,
    _around,
    _arrange,
    _check_wrapper,
    _gradients,
    _keepable,
    _needed,
    numbered,
)
from paramgraph_kit.step.cells import TENSOR, Cell, layout
from paramgraph_kit.step.holders import Holder
from paramgraph_kit.step.moves import lying, moves
from paramgraph_kit.step.observe import Change
from paramgraph_kit.step.refusals import check_backward, check_left, check_observation, check_surroundings, surroundings
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason, Word, WordKind
from tests.integration.launch_bench import DRIVER
from tests.unit.test_exact_tensors import Holding

DEVICE = DRIVER.device


def ones(*size: int) -> torch.Tensor:
    return torch.ones(size, device=DEVICE)


def refused(function: Any, *args: Any) -> tuple[str, str] | None:
    """The code and the text of a refusal."""
    try:
        function(*args)
    except RefusedError as error:
        return error.reason.code, error.reason.message
    return None


def change(
    before: Any, after: Any, kind: str = "dict", key: Any = "state", name: str = "self", target: Any = None
) -> Change:
    return Change(Holder(kind, name, {} if target is None else target), key, before, after)


def needing() -> torch.Tensor:
    return ones(2).requires_grad_() * 2


def spent_loss() -> torch.Tensor:
    loss = needing().square().sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss


# -- which gradients stay on memory that is used again


def gradient(size: int = 4) -> tuple[Captured, list[Cell]]:
    """A step that leaves one gradient, as it found one."""
    w = ones(size)
    output = Output(Kind.FRESH, 0, 0, (size,), (1,), torch.float32)
    captured: Any = Captured(None, [], [RawAllocation(1 << 40, 512, 0)], [], [output])  # type: ignore[arg-type]
    spec = pytree.tree_flatten(w)[1]
    return captured, [Cell(Holder("gradient", "w", w), "", [TENSOR], spec, [layout(w)], [0], [None], spec)]


def test_a_gradient_stays_where_it_is_as_it_was_alone_on_its_memory_and_no_result() -> None:
    # GIVEN a step with one gradient WHEN asked which stay THEN it does
    captured, cells = gradient()
    assert _keepable(captured, cells, [], DEVICE) == [0]
    assert _keepable(captured, cells, [None, None], DEVICE) == [0]
    # AND not where it is a result too, or in another cell
    assert _keepable(captured, cells, [0], DEVICE) == []
    assert _keepable(captured, [*cells, replace(cells[0], holder=Holder("dict", "d", {}))], [], DEVICE) == []
    # AND not where a launch reads it, none is left, it was none, or another kind of place holds it
    others: list[dict[str, Any]] = [
        {"reads": [0]},
        {"exits": [None]},
        {"layouts": [None]},
        {"holder": Holder("dict", "d", {})},
        {"layouts": [layout(ones(5))]},
    ]
    for otherwise in others:
        assert _keepable(captured, [replace(cells[0], **otherwise)], [], DEVICE) == []
    assert _keepable(captured, cells, [], torch.device("meta")) == []
    # AND not where it does not begin its memory, has a lazy bit, is no fresh memory, or shares it
    of_outputs: list[dict[str, Any]] = [
        {"offset": 4},
        {"bits": (False, True)},
        {"kind": Kind.INPUT},
        {"dtype": torch.float64},
    ]
    for otherwise in of_outputs:
        captured.outputs = [replace(captured.outputs[0], **otherwise)]
        assert _keepable(captured, cells, [], DEVICE) == []
        captured, cells = gradient()
    captured.outputs.append(captured.outputs[0])
    assert _keepable(captured, cells, [], DEVICE) == []
    captured.outputs[1] = replace(captured.outputs[1], kind=Kind.INPUT)
    assert _keepable(captured, cells, [], DEVICE) == [0]
    # AND an allocation of one byte is one, of none none
    for size, stays in ((0, []), (1, [0])):
        captured.allocations = [RawAllocation(1 << 40, size, 0)]
        assert _keepable(captured, cells, [], DEVICE) == stays


def recorded() -> Captured:
    """Two arguments, two tensors at entry of which one is read, a gradient, a buffer, an output of the state's."""
    words = [
        (Word(0, WordKind.POINTER, 3, 8), Word(8, WordKind.SCALAR, value=1)),
        (Word(0, WordKind.POINTER, 5, 0), Word(8, WordKind.POINTER, 4, 4)),
    ]
    outputs = [
        Output(Kind.FRESH, 4, 0, (4,), (1,), torch.float32),
        Output(Kind.FIXED, value=7),
        Output(Kind.INPUT, 0, 4, (3,), (1,), torch.float32),
    ]
    specs: list[InputSpec | None] = [InputSpec((n,), (1,), torch.float32, 256, 4 * n) for n in range(1, 5)]
    allocations = [RawAllocation((n + 1) << 30, 16, n) for n in range(6)]
    return Captured(None, words, allocations, [0, 1, 2, 3], outputs, (), specs)  # type: ignore[arg-type]


def test_what_nobody_reads_is_left_out_and_gradients_that_stay_come_last() -> None:
    # GIVEN a captured step WHEN asked what it needs THEN what it addresses, and inputs that it returns
    captured = recorded()
    assert _needed(captured) == {0, 3, 4, 5}
    # WHEN arranged with its gradient as an input
    found = _arrange(captured, 2, [0])
    # THEN inputs are the arguments, what is read at entry, and the gradient; all words and outputs go along
    assert [a.born for a in found.allocations] == [0, 1, 3, 4, 5]
    assert found.input_positions == [0, 1, 2, 3]
    assert [spec and spec.size for spec in found.specs] == [(1,), (2,), (4,), (4,)]
    assert [[(w.allocation, w.delta) for w in node] for node in found.words] == [[(2, 8), (None, 0)], [(4, 0), (3, 4)]]
    assert found.outputs == [
        Output(Kind.ARGUMENT, 3),
        Output(Kind.FIXED, value=7),
        Output(Kind.INPUT, 0, 4, (3,), (1,), torch.float32),
    ]
    # AND without one it is made anew, on memory of its own
    found = _arrange(recorded(), 0, [])
    assert [a.born for a in found.allocations] == [0, 3, 4, 5]
    assert found.outputs[0] == Output(Kind.FRESH, 2, 0, (4,), (1,), torch.float32)
    assert found.input_positions == [0, 1]


def test_results_are_numbered_once_and_compared_by_place() -> None:
    # GIVEN results and places that hold some of the same tensors WHEN numbered THEN each has one number
    x, y, z = ones(1), ones(2), ones(3)
    tensors, order = numbered((x, 3, [y, x]), [y, (z, "a"), None])
    assert [id(t) for t in tensors] == [id(x), id(y), id(z)]
    assert (order.results, order.plain) == ([0, None, 1, 0], [None, 3, None, None])
    assert order.exits == [([1], [None]), ([2, None], [None, "a"]), ([None], [None])]
    # AND another call has left the same where all of these are
    for result, held, same in (
        ((x, 3, [y, x]), [y, (z, "a"), None], True),
        ((z, 3, [y, z]), [y, (x, "a"), None], True),
        ((x, 3, [y, y]), [y, (z, "a"), None], False),
        ((x, 4, [y, x]), [y, (z, "a"), None], False),
        ((x, 3, [y, x]), [y, (z, "b"), None], False),
        ((x, 3, (y, x)), [y, (z, "a"), None], False),
        ((x, 3, [y, x]), [x, (z, "a"), None], False),
    ):
        assert order.same(numbered(result, held)[1]) is same


def test_gradients_that_are_there_before_and_were_not_put_elsewhere_are_cells_too() -> None:
    # GIVEN parameters with and without gradients, of which one has another gradient afterwards, and other places
    u, v, w = (torch.nn.Parameter(ones(2)) for _ in range(3))
    grads = ones(2), ones(2)
    holders = [Holder("gradient", n, t) for n, t in zip("uvw", (u, v, w), strict=True)] + [Holder("dict", "d", {})]
    before = SimpleNamespace(
        reach=SimpleNamespace(holders=holders), contents=[{"": grads[0]}, {"": None}, {"": grads[1]}, {"": 1}]
    )
    seen: Any = SimpleNamespace(before=before, changes=[Change(holders[2], "", grads[1], ones(2))])
    # WHEN asked THEN it is the first that may be another one at another call
    (found,) = _gradients(seen)
    assert (found.holder, found.key, found.before is grads[0], found.after is grads[0]) == (holders[0], "", True, True)
    # AND a change of another kind of the same tensor is none of its gradient
    seen.changes = [Change(Holder("data", "w", w), True, grads[1], grads[1])]
    assert [each.holder.name for each in _gradients(seen)] == ["u", "w"]


@pytest.mark.parametrize(
    ("at", "nodes", "first", "last"),
    [([0, 0], 3, [0, 1], []), ([3, 0, 3], 3, [1], [0, 2]), ([0, 0], 0, [], [0, 1]), ([], 3, [], []), ([4], 3, [], [0])],
)
def test_a_scheduler_is_called_before_all_kernels_or_behind_them(
    at: list[int], nodes: int, first: list[int], last: list[int]
) -> None:
    # GIVEN calls of schedulers, each behind so many nodes WHEN parted THEN each is before the launch, or behind it
    calls: list[Any] = [(n, k) for k, n in enumerate(at)]
    parted: list[Any] = [*_around(calls, nodes)]
    assert parted == [first, last]
    # AND none is between
    for between in (1, 2):
        said = refused(_around, [(0, "a"), (between, "b")], 3)
        assert said == ("side-effect", "a scheduler's step() is called between kernels of the step: call it last")


def test_an_alias_has_no_lazy_bit_unless_it_is_said() -> None:
    # GIVEN / WHEN / THEN
    assert Alias(1, (2,), (1,), 0, torch.float32).bits == (False, False)


def test_a_wrapper_on_one_device_that_tells_its_parts_is_state() -> None:
    # GIVEN subclasses that tell what they hold, or not, on one device or several
    class Telling(Holding):
        device_mesh: Any = None

    # WHEN asked THEN only one on several devices is refused
    held = Telling(ones(2))
    for count, code in ((None, None), (1, None), (2, "user-stream")):
        held.device_mesh = None if count is None else SimpleNamespace(size=lambda count=count: count)
        said = refused(_check_wrapper, "w", held)
        assert (said and said[0]) == code
    assert said is not None
    assert said[1].startswith("w is a Telling on 2 devices, ")
    # AND one that does not tell
    said = refused(_check_wrapper, "w", torch.eye(2).to_sparse())
    assert said is not None
    assert said[0] == "hidden-tensor"


# -- tensors that lie elsewhere


def test_what_lay_where_and_lies_elsewhere_is_a_cell_where_all_else_stayed() -> None:
    # GIVEN tensors of the state, of another device, of another kind, and one that is an argument
    w, v, given = torch.nn.Parameter(ones(4)), ones(4), ones(4)
    other = torch.ones(4, device="meta") if DEVICE.type == "cpu" else torch.ones(4)
    strange: Any = ones(2).as_subclass(type("Strange", (torch.Tensor,), {}))
    named = {"w": w, "v": v, "x": given, "other": other, "strange": strange, "turned": ones(2)._neg_view()}
    reach: Any = SimpleNamespace(tensors={id(t): (name, t) for name, t in named.items()})
    # WHEN asked before a call THEN the state's plain ones are known, with whether they need gradients
    before = lying(reach, DEVICE, [("x", [given])])
    known = {reach.tensors[key][0]: needed for key, (_, needed) in before.items()}
    assert known == {"w": True, "v": False, "turned": False}
    assert all(then.data_ptr() == reach.tensors[key][1].data_ptr() for key, (then, _) in before.items())
    assert not any(then.requires_grad for then, _ in before.values())
    assert list(moves(reach, before)) == []
    # WHEN one is put onto other memory THEN it is told, with both
    then, now = w.detach(), ones(4)
    w.data = now
    ((holder, needed, old, new),) = moves(reach, before)
    assert (holder.kind, holder.name, holder.target is w, needed) == ("data", "w", True, True)
    assert [old.data_ptr(), new.data_ptr()] == [then.data_ptr(), now.data_ptr()]
    # AND not where it is otherwise too
    for otherwise in (ones(3), ones(8)[::2], ones(2, 2), ones(4).double(), ones(0)):
        w.data = otherwise
        assert list(moves(reach, before)) == []
    w.data = now
    w.requires_grad_(False)
    assert list(moves(reach, before)) == []
    w.requires_grad_()
    # AND where nothing leads to it any more, there is nothing to tell
    del reach.tensors[id(w)]
    assert list(moves(reach, before)) == []


# -- refusals


def observation(**otherwise: Any) -> Any:
    """A watched call of which nothing is to be said."""
    there: dict[str, Any] = {
        "before": SimpleNamespace(reach=SimpleNamespace(complete=True, scripted="", holders=[])),
        "after": SimpleNamespace(reach=SimpleNamespace(complete=True)),
        "asked": None,
        "unforeseen": set(),
        "unseen": [],
        "names": SimpleNamespace(own=set()),
        "rekinded": False,
        "aside": False,
        "drew_on_host": False,
        "advanced": [],
        "host_written": [],
        "moved": [],
        "result": None,
    }
    return SimpleNamespace(**there | otherwise)


def looked(complete: bool = True, scripted: str = "", holders: Any = ()) -> Any:
    return SimpleNamespace(reach=SimpleNamespace(complete=complete, scripted=scripted, holders=holders))


ADAM = Holder("dict", "group", {"capturable": False, "params": []})
OTHERS = [
    Holder("dict", "group", {"capturable": True, "params": []}),
    Holder("dict", "mine", {"capturable": False}),
    Holder("attributes", "self", {"capturable": False, "params": []}),
]


@pytest.mark.parametrize(
    ("otherwise", "code", "said"),
    [
        ({}, None, ""),
        ({"before": looked(complete=False)}, "too-much-state", "too many objects"),
        ({"after": looked(complete=False)}, "too-much-state", "too many objects"),
        ({"before": looked(scripted="self.m")}, "hidden-tensor", "self.m was compiled by torch.jit"),
        ({"unforeseen": {"d", "b", "c", "a"}}, "unknown-state", "no earlier one led to (a, b, c)"),
        ({"unseen": [("self.q", "is closed")]}, "unknown-state", "self.q is closed: give what it holds"),
        ({"names": SimpleNamespace(own={"_version"})}, "unknown-state", "(_version)"),
        ({"rekinded": True}, "side-effect", "another class or dictionary"),
        ({"aside": True}, "user-stream", "has not waited for the step's own"),
        ({"drew_on_host": True}, "host-random", "draw on the device"),
        ({"advanced": ["it, a zip", "b"]}, "side-effect", "the next item of it, a zip, which no launch would"),
        ({"moved": ["self.w", "b"]}, "side-effect", "self.w lies elsewhere or looks otherwise"),
        ({"host_written": ["self.n", "b"]}, "host-counter", "self.n is on the CPU and is written"),
        (
            {"host_written": ["o.state[0]['step']"], "before": looked(holders=[*OTHERS, ADAM])},
            "optimizer-not-capturable",
            "make it with capturable=True",
        ),
        ({"host_written": ["o.n"], "before": looked(holders=[ADAM])}, "host-counter", "o.n is on the CPU"),
        ({"host_written": ["o['step']"], "before": looked(holders=OTHERS)}, "host-counter", "o['step'] is on the CPU"),
        ({"result": [needing()]}, "requires-grad", "a result needs gradients"),
        ({"result": spent_loss()}, None, ""),
        ({"result": (ones(2), 3, "a", None)}, None, ""),
        ({"result": {"a": object()}}, "unknown-output", "the step returns a object, and a graph returns tensors and"),
    ],
)
def test_a_watched_call_is_refused_for_the_first_of_these(
    otherwise: dict[str, Any], code: str | None, said: str
) -> None:
    # GIVEN what a watched call has shown WHEN asked THEN this is refused, or nothing
    found = refused(check_observation, observation(**otherwise))
    assert (found and found[0]) == code
    assert said in (found[1] if found else "")


def test_results_on_the_host_and_of_more_than_memory_are_refused() -> None:
    # GIVEN results of which a graph has no address, or the host has it WHEN asked THEN each is told as what it is
    if DEVICE.type != "cpu":
        found = refused(check_observation, observation(result=torch.ones(2)))
        assert found is not None
        assert found[0] == "host-output"
    quantized = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    found = refused(check_observation, observation(result=quantized))
    assert found is not None
    assert found[0] in ("unknown-output", "host-output")


def test_surroundings_are_asked_before_a_call() -> None:
    # GIVEN arguments, autocast with and without its cache WHEN asked THEN what may be another at each call is refused
    driver: Any = SimpleNamespace(device=torch.device("cpu"))
    assert refused(check_surroundings, driver, []) is None
    assert refused(check_surroundings, driver, [ones(2), ones(2)]) is None
    for given in ([needing()], [ones(2), needing()]):
        found = refused(check_surroundings, driver, given)
        assert found is not None
        assert found[0] == "requires-grad"
    for cached, code in ((True, "autocast-cache"), (False, None)):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
            found = refused(check_surroundings, driver, [])
            assert (found and found[0]) == code
    # AND who looks into backward passes
    assert refused(check_backward) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        found = refused(check_backward)
        assert found is not None
        assert "hooks for saved tensors" in found[1]


def test_a_call_leaves_switches_and_arguments_as_they_were() -> None:
    # GIVEN a call that leaves a switch or an attribute otherwise WHEN asked THEN each is refused as what it is
    x = ones(2)
    before = surroundings([x])
    assert refused(check_left, before, [x]) is None
    x.mine = 3  # type: ignore[attr-defined]
    found = refused(check_left, before, [x])
    assert found is not None
    assert found[1].startswith("the call sets an attribute of an argument, ")
    assert refused(check_left, surroundings([x]), [x]) is None
    del x.mine  # type: ignore[attr-defined]
    with torch.no_grad():
        found = refused(check_left, before, [x])
    assert found is not None
    assert found[1].startswith("the call leaves one of torch's switches otherwise, ")


# -- a step's own questions


def step() -> Any:
    return pgk.parameterize(lambda x: x * 2, state=(), verify="off")


def test_a_refusal_says_nothing_of_later_calls_where_the_first_made_things_or_another_graph_fits() -> None:
    # GIVEN a step that has been called so often with a key, and a refusal WHEN asked whether it passes
    def passes(code: str, calls: int, futile: int, kind: str = "dict", graphs: tuple[bool, ...] = ()) -> bool:
        asked = step()
        asked._calls["key"], asked._futile["key"] = calls, futile
        if graphs:
            asked._graphs["key"] = [SimpleNamespace(fits=lambda fits=fits: fits) for fits in graphs]
        seen: Any = SimpleNamespace(changes=[change(1, 2), change(1, 2, kind)])
        return bool(asked._passing("key", seen, Reason(code, "text")))

    # THEN the first call's side effects do, those of cached functions for a while, those beside a graph that fits
    assert [passes("side-effect", calls, 0) for calls in (1, 2, 8)] == [True, False, False]
    assert [passes("side-effect", calls, 0, "cached") for calls in (1, 7, 8, 9)] == [True, True, False, False]
    assert [passes("side-effect", 5, 0, graphs=g) for g in ((True,), (False,), (False, True))] == [True, False, True]
    # AND a graph of before that is still held three times, and a capture that another one keeps from beginning
    assert [passes("legacy-stream", 2, n) for n in (0, 2, 3)] == [True, True, False]
    assert passes("capture-under-way", 9, 0)
    assert not any(passes(code, 1, 0) for code in ("requires-grad", "unknown-state"))


def test_too_many_graphs_numbers_and_captures_are_refused() -> None:
    # GIVEN a step with graphs that differ in some places WHEN another is to be captured
    def asked(differences: list[Any], futile: int = 0, others: int = 0) -> tuple[str, str] | None:
        made = step()
        made._futile["key"] = futile
        made._graphs["key"] = [SimpleNamespace(difference=lambda d=d: d) for d in differences]
        made._graphs["other"] = [None] * others
        return refused(made._check_number, "key")

    held = iter(range(100))

    def number(place: str) -> Any:
        return SimpleNamespace(place=place, is_number=True, key=place, held=next(held))

    other = SimpleNamespace(place="self.mode", is_number=False, key="mode")
    # THEN four numbers of one place are enough, 64 graphs of the step, and eight captures without a launch
    assert asked([number("self.n")] * 3 + [other] * 3 + [None]) is None
    found = asked([number("a"), number("b"), number("b"), other, number("b"), number("b"), None])
    assert found is not None
    assert found[0] == "changing-scalar"
    assert found[1].startswith("b is a number, which a graph has baked in, and had more than 4 values")
    assert asked([number("a"), number("b")] * 3) is None
    assert asked([other] * 10) is None
    assert asked([other] * 3, others=60) is None
    assert asked([other] * 4, others=60) == (
        "too-many-variants",
        "called in more than 64 ways: pad what it is given to fewer shapes",
    )
    assert asked([None, other], futile=7) is None
    found = asked([None, other], futile=8)
    assert found is not None
    assert found[1].startswith(
        "captured 8 times and launched none of them: self.mode holds something else at each call;"
    )
    found = asked([None], futile=8)
    assert found is not None
    assert ": its state lies elsewhere at each call;" in found[1]
