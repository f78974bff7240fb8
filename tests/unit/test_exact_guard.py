"""What a captured step depends on: one place after the other is another one, and the guard says so."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import functools
import threading
import types
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.hooks import RemovableHandle

import paramgraph_kit as pgk
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.step import guard as guarding
from paramgraph_kit.step.guard import Difference, Guard
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.observe import Change, snapshot

NATIVE: Any = SimpleNamespace(unchanged=lambda _: True)  # what C++ asks has not changed


class Settings:
    rate = 2.0

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("one", "rate")


def guarded(
    *roots: tuple[str, Any],
    known: tuple[str, ...] = ("rate", "state"),
    cells: Any = (),
    changes: Any = (),
    used: Any = (),
    given: Any = (),
    far: Any = (),
) -> Guard:
    names = Names(known=set(known), own=set(known))
    before = snapshot(roots, given, names)
    reach = before.reach
    near = {*reach.tensors, *(id(x) for _, x in reach.arrays), *map(id, reach.objects)} - {id(x) for x in far}
    within = {key for key in reach.keys if key[1] not in {id(x) for x in far}}
    call: Any = SimpleNamespace(before=before, names=names, within=within, near=near, changes=list(changes))
    return Guard(call, {(id(target), key) for target, key in cells}, used)


def places(found: list[tuple[Holder, dict[Any, Any]]], target: Any) -> list[dict[Any, Any]]:
    return [expected for holder, expected in found if holder.target is target]


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("what", ["gradient", "cached", "beside", "host", "array", "asked", "list", "closed", "tensor"])
def test_one_of_two_places_is_enough(what: str, number: int, built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two places of a kind, asked for at once or one after the other
    if not built:
        for module in ("guard", "kept"):
            monkeypatch.setattr(f"paramgraph_kit.step.{module}.checks", lambda: None)
        for module in ("places", "tensors", "objects"):
            monkeypatch.setattr(f"paramgraph_kit.driver.native.{module}.checks", lambda: None)
        monkeypatch.setattr("paramgraph_kit.driver.dict_versions.checks", lambda: None)
    device = pgk.device()
    used: tuple[Any, ...] = ()
    if what == "gradient":
        both: list[Any] = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        for x in both:
            x.grad = torch.ones(2)
    elif what == "cached":
        both = [functools.cache(lambda x, n=n: x + n) for n in range(2)]
        for x in both:
            x(5)
    elif what in ("beside", "tensor"):
        both = [torch.ones(2, device=device) for _ in range(2)]
        used = tuple(both) if what == "tensor" else ()
    elif what == "host":
        both = [torch.ones(2) for _ in range(2)]
    elif what == "array":
        both = [np.ones(2) for _ in range(2)]
    elif what == "asked":
        both = [threading.Event() for _ in range(2)]
    elif what == "list":
        both = [[1.5], deque([2.5])]
    else:

        def closed(n: int) -> Any:
            value = [n + 0.5]
            return lambda: value

        both = [closed(n) for n in range(2)]
    guard = guarded(*((f"x{n}", x) for n, x in enumerate(both)), used=used)
    for _ in range(3):
        assert guard.holds()
        assert guard._at_once(NATIVE, ())
    x = both[number]
    # WHEN one is another one
    if what == "gradient":
        x.grad = torch.ones(2)
    elif what == "cached":
        x.cache_clear()
    elif what == "beside":
        x.resize_(1)
    elif what == "tensor":
        x.data = torch.ones(2, device=device)
    elif what in ("host", "array"):
        x[1] = 7
    elif what == "asked":
        x.set()
    elif what == "list":
        x.append(3.5)
    else:
        x.__closure__[0].cell_contents = 9
    # THEN the guard does not hold
    assert not guard.holds()
    if what not in ("list", "closed", "tensor"):
        assert not guard._at_once(NATIVE, ())


def test_a_difference_is_named_with_its_last_name_and_whether_both_are_numbers() -> None:
    # GIVEN places of several kinds
    assert Difference("x") == Difference("x", None, is_number=False)
    space: dict[str, Any] = {}
    exec("def mine(): return rate, other", space)
    held: dict[str, Any] = {"a": 1, "b": (2.0,), "c": [3]}
    listed: list[Any] = [5, "text"]
    ordered, thing = OrderedDict(rate=2.0), Settings(rate=1)
    guard = guarded(("held", held), ("listed", listed), ("ordered", ordered), ("mine", space["mine"]), ("t", thing))
    assert guard.difference() is None
    # WHEN each holds something else THEN it is named
    steps: list[tuple[Any, Any, Any, Difference]] = [
        (held, "a", 4, Difference("held['a']", "a", True)),
        (held, "a", "4", Difference("held['a']", "a", False)),
        (held, "b", 4.0, Difference("held['b']", "b", False)),
        (listed, 0, 7.5, Difference("listed[0]", 0, True)),
        (listed, 1, 7, Difference("listed[1]", 1, False)),
        (ordered, "rate", 3.0, Difference("ordered['rate']", "rate", True)),
        (vars(thing), "rate", 2, Difference("t.rate", "rate", True)),
        (space, "rate", 1.0, Difference("rate", "rate", False)),
    ]
    for target, key, value, expected in steps:
        before = dict(target) if isinstance(target, dict) else list(target)
        target[key] = value
        assert guard.difference() == expected
        target.clear()
        target.update(before) if isinstance(target, dict) else target.extend(before)
    assert guard.difference() is None
    # AND a variable of a closure has no name of its own but that
    value = 2.0
    guard = guarded(("closed", lambda: value))
    value = 3.0
    assert guard.difference() == Difference("value", None, True)


def test_a_tensor_of_the_host_and_a_function_of_a_library_are_named() -> None:
    # GIVEN two on the host WHEN one is written THEN it is that
    both: list[Any] = [torch.ones(1), np.ones(1)]
    guard = guarded(("x", both[0]), ("y", both[1]))
    assert guard.difference() is None
    both[1][0] = 3
    assert guard.difference() == Difference("y, on the CPU,")
    # AND where a function of a library's is replaced it is that
    guard._functions = SimpleNamespace(difference=lambda: "Tensor.add")  # type: ignore[assignment]
    assert guard.difference() == Difference("Tensor.add")


def test_arguments_are_known_that_are_the_state_s_own_or_gradients_that_still_are() -> None:
    # GIVEN a parameter with a gradient, a buffer, an argument, and a tensor that the code cannot have got to
    device = pgk.device()
    weight = torch.nn.Parameter(torch.ones(2, device=device))
    weight.grad = torch.ones(2, device=device)
    buffer, argument, far = (torch.ones(3, device=device) for _ in range(3))
    guard = guarded(("w", weight), ("b", buffer), ("far", far), given=[("x", argument)], far=[far])
    gradient = weight.grad
    # WHEN asked of which tensors the step may know THEN of those, in their places
    assert guard.among([]) == guard.among([argument, far, torch.ones(1)]) == ()
    assert guard.among([buffer]) == (id(buffer),)
    assert guard.among([argument, weight, far, gradient]) == (0, id(weight), 0, id(gradient))
    # AND a gradient only as long as it is the parameter's
    weight.grad = torch.ones(2, device=device)
    assert guard.among([gradient]) == ()
    assert guard.among([gradient, buffer]) == (0, id(buffer))


def test_only_what_the_code_can_have_got_to_is_asked_for() -> None:
    # GIVEN of each kind one that it can have got to, one that it cannot, and one that is an argument
    device = pgk.device()

    def three(make: Any) -> list[Any]:
        return [make() for _ in range(3)]

    beside = three(lambda: torch.ones(2, device=device))
    host, arrays, lists, things = three(lambda: torch.ones(2)), three(lambda: np.ones(2)), three(list), three(Settings)
    kinds = [beside, host, arrays, lists, things]
    roots = [(f"{k}[{n}]", each[n]) for k, each in enumerate(kinds) for n in (0, 1)]
    given = [(f"given {k}", each[2]) for k, each in enumerate(kinds)]
    guard = guarded(
        *roots, given=given, far=[x for each in kinds for x in (each[1], vars(each[1]) if each is things else 0)]
    )
    # WHEN made THEN it asks for the first
    assert [x is beside[0] for x in guard._beside] == [True]
    # An argument on the host is compared by value, whoever gives it.
    assert {id(what) for what, _, _ in guard._host} == {id(x) for x in (host[0], host[2], arrays[0], arrays[2])}
    assert [x for x in guard._kinds._objects if isinstance(x, Settings)] == [things[0]]
    targets = [holder.target for holder, _ in (*guard._dicts, *guard._others, *guard._volatile)]
    assert [any(x is each for x in targets) for each in lists] == [True, False, False]


def test_tensors_that_a_launch_addresses_or_leaves_are_not_looked_at_beside() -> None:
    # GIVEN tensors of which one is addressed, one was in a place before and one is there afterwards
    one, two, three, four = (torch.ones(2, device=pgk.device()) for _ in range(4))
    kept = [one, two, three, four]
    change = Change(Holder.of({}, "it"), "a", (two, 5), [three])
    guard = guarded(("kept", kept), used=[one], changes=[change])
    # WHEN made THEN the other is looked at
    assert [x is four for x in guard._beside] == [True]
    assert [x is one for x in guard.tensors] == [True]


def test_places_are_asked_by_version_by_identity_or_read() -> None:
    # GIVEN dicts of three kinds, lists, and what a step writes of them
    plain, ordered, listed, written, all_written = {"a": 1}, OrderedDict(a=1), [1], [2, 3], OrderedDict(a=1)
    thing = Settings(rate=1)
    weight, graded = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    weight.grad = graded.grad = torch.ones(2)
    roots: list[tuple[str, Any]] = [("thing", thing), ("plain", plain), ("ordered", ordered), ("listed", listed)]
    roots += [("written", written), ("all", all_written), ("weight", weight), ("graded", graded)]
    guard = guarded(*roots, cells=[(written, 0), (all_written, "a"), (graded, "")])
    # WHEN made THEN each is where it belongs
    assert places(guard._dicts, plain) == [{"a": 1}]
    assert places(guard._dicts, vars(thing)) == [{"rate": 1}]
    assert places(guard._others, ordered) == [{"a": 1}]
    assert places(guard._others, listed) == [{0: 1}]
    assert places(guard._volatile, written) == [{1: 3}]
    assert places(guard._others, all_written) == [{}]
    assert guard._gradients._tensors == [weight]
    assert guard._gradients_then == [weight.grad]
    assert not any(holder.kind == "gradient" for holder, _ in (*guard._dicts, *guard._others, *guard._volatile))


def test_of_an_object_that_no_code_reads_plain_values_may_change_and_not_go_away() -> None:
    # GIVEN an object with an attribute that code names, of which it is known that none reads it here
    thing = Settings(rate=1, other=2)
    names = Names(known={"rate"}, own=set())
    names._naming = {"rate": []}
    before = snapshot([("thing", thing)], [], names)
    near = set(map(id, before.reach.objects))
    call: Any = SimpleNamespace(before=before, names=names, within=before.reach.keys, near=near, changes=[])
    guard = Guard(call, set(), [])
    assert guard.holds()
    assert guard._passed == {id(vars(thing)): {"rate"}}
    # WHEN it counts, or something comes that nobody names THEN it holds
    thing.rate = 5
    thing.more = 1  # type: ignore[attr-defined]
    assert guard.holds()
    # AND once it is gone not
    del vars(thing)["rate"]
    assert not guard.holds()


def test_attributes_that_come_count_where_they_are_named_and_the_step_does_not_write_them() -> None:
    # GIVEN objects with an attribute that is named
    for cells, holds in (((), False), (("state",), True)):
        thing = Settings(rate=int("1000"))
        guard = guarded(("thing", thing), cells=[(vars(thing), key) for key in cells])
        (row,) = [row for row in guard._dicts if row[0].target is vars(thing)]
        assert guard._is(*row)
        # WHEN one comes that nobody names THEN it is the same, and where it is named only if the step writes it
        thing.other = 1  # type: ignore[attr-defined]
        assert guard._is(*row)
        thing.state = 1  # type: ignore[attr-defined]
        assert guard._is(*row) is holds
        # AND an equal value is the same, another one is not, nor is none
        del thing.state  # type: ignore[attr-defined]
        thing.rate = 1.5
        assert not guard._is(*row)
        thing.rate = int("1000")
        assert guard._is(*row)
        del thing.rate
        assert not guard._is(*row)


def test_what_a_cache_found_is_asked_and_more_may_have_come() -> None:
    # GIVEN a cache with two results
    cached = functools.cache(lambda x: [x])
    first = [cached(n) for n in range(2)]
    guard = guarded(("cached", cached))
    (row,) = [row for row in guard._volatile if row[0].kind == "cached"]
    assert guard._is(*row)
    # WHEN more come THEN it is the same, and where one of the two is made anew it is not
    cached(2)
    assert guard._is(*row)
    cached.cache_clear()
    assert cached(0) == first[0]
    assert cached(1) == first[1]
    cached.cache_clear()
    cached(1)
    assert not guard._is(*row)


def test_the_order_of_a_dict_counts_and_what_the_step_writes_of_it_does_not() -> None:
    # GIVEN a dict of which the step writes one item
    held: dict[str, Any] = {"a": 1, "b": 2, "c": 3}
    guard = guarded(("held", held), cells=[(held, "b")])
    (row,) = [row for row in guard._dicts if row[0].target is held]
    # WHEN that is another one THEN it is the same; another order, another item, or one more is not
    for contents, same in (
        ({"a": 1, "b": 7, "c": 3}, True),
        ({"b": 7, "a": 1, "c": 3}, True),
        ({"c": 3, "a": 1}, False),
        ({"a": 1, "c": 4}, False),
        ({"a": 1, "c": 3, "d": 4}, False),
    ):
        held.clear()
        held.update(contents)
        assert guard._is(*row) is same


def test_hooks_are_asked_for_once_somebody_has_registered_one() -> None:
    # GIVEN two parameters and a module without hooks
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    module = torch.nn.Identity()
    for register in (
        lambda: weights[0].register_hook(lambda _: None),
        lambda: weights[1].register_post_accumulate_grad_hook(lambda _: None),
        lambda: module.register_forward_hook(lambda *_: None),
    ):
        guard = guarded(("one", weights[0]), ("other", weights[1]), ("module", module))
        assert len(guard._unhooked) > 1
        # WHEN one is registered elsewhere THEN it is noted that nothing is here
        assert guard._hooks()
        torch.nn.Identity().register_forward_hook(lambda *_: None)
        assert guard._registered != RemovableHandle.next_id
        assert guard._hooks()
        assert guard._registered == RemovableHandle.next_id
        # AND one here is found, as long as it is there
        handle = register()
        assert not guard._hooks()
        assert not guard._hooks()
        handle.remove()


def test_nothing_is_asked_at_once_where_c_cannot_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a guard WHEN one of its questions has no answer in C++ THEN each is asked
    guard = guarded(("held", {"a": [1]}))
    monkeypatch.setattr(type(guard._kinds), "check", None)
    monkeypatch.setattr(type(guard._kinds), "same", lambda self: True)  # which asks with it, once that is built
    assert guard.holds()
    assert guard._checks is None
    # AND where all have, they are asked at once, as long as C++ is there
    monkeypatch.undo()
    if checks() is not None:
        assert guard.holds()
        assert guard._checks is not None
        assert len(guard._checks) == 6
        asked: list[Any] = []
        native = SimpleNamespace(unchanged=lambda at_once: asked.append(at_once) or True)
        monkeypatch.setattr(guarding, "checks", lambda: native)
        monkeypatch.setattr(guard, "_places", lambda: False)
        assert guard.holds()
        assert asked == [guard._checks]
        monkeypatch.setattr(guarding, "checks", lambda: None)
        assert not guard.holds()


@pytest.mark.parametrize(
    "false", ["_versions", "_functions", "_gradients", "_kinds", "_beside_alike", "_hooks", "_looks"]
)
def test_each_answer_alone_is_enough_to_hold_no_more(false: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a guard that holds WHEN one of those asked says no, and the dictionaries hold something else THEN neither
    held = {"a": 1.0}
    guard = guarded(("held", held), ("x", torch.ones(1, device=pgk.device())))
    assert guard.holds()
    guard._checks = None
    no: Any = lambda *_: False  # noqa: E731
    fake = SimpleNamespace(same=no, are=no)
    monkeypatch.setattr(guard, false, no if false in ("_versions", "_beside_alike", "_hooks") else fake)
    if false == "_versions":
        assert guard.holds()
        held["a"] = 2.0
        monkeypatch.setattr(guard, false, no)
    assert not guard.holds()


def test_a_dict_that_holds_an_equal_container_in_the_place_of_one_is_read_from_then_on() -> None:
    # GIVEN dicts that hold a number and a list, of which both are replaced by equal ones
    dicts: list[dict[str, Any]] = [{"number": 2.5, "list": [n]} for n in range(3)]
    held, other, same = dicts
    guard = guarded(("held", held), ("other", other), ("same", same))
    assert guard.holds()
    held["list"] = [0]
    other["number"] = float("2.5")
    # WHEN the guard has looked THEN it reads the first at each call, and no other
    assert guard.holds()
    assert [holder.target is held for holder, _ in guard._volatile] == [True]
    targets = [holder.target for holder, _ in guard._dicts]
    assert [any(x is each for x in targets) for each in (held, other, same)] == [False, True, True]
    assert guard.holds()
    held["list"].append(1)
    assert not guard.holds()


def test_what_is_compared_by_identity_has_its_kind_and_its_values() -> None:
    # GIVEN holders WHEN asked for places THEN of each kind its own
    def found(holder: Holder, expected: Any = None) -> Any:
        (place,) = guarding._places_of(holder, holder.read() if expected is None else expected)
        return place.kind, place.values, place.key

    listed, dequed, some, ordered = [1, 2], deque([3]), {4}, OrderedDict(a=1)
    assert found(Holder.of(listed, "x")) == ("list", (1, 2), None)
    assert found(Holder.of(dequed, "x")) == ("deque", (3,), None)
    assert found(Holder.of(some, "x")) == ("set", (4,), None)
    assert found(Holder.of(ordered, "x")) == ("dict", ("a", 1), None)
    function = lambda x=1, *, y=2: x + y  # noqa: E731
    parts = function.__code__, (1,), {"y": 2}
    assert found(Holder("function", "f", function, whole=True)) == ("function", parts, None)
    cell = types.CellType(5)
    assert found(Holder("cell", "c", cell)) == ("cell", (5,), None)
    assert list(guarding._places_of(Holder("cell", "c", cell), {})) == []
    kind, values, bases = found(Holder("class", "Settings", Settings))
    assert (kind, values[::2], bases) == ("class", tuple(vars(Settings)), (object,))
    assert list(guarding._places_of(Holder("asked", "a", 1, ask=lambda: 1), {"": EMPTY})) == []


def test_an_equal_number_in_the_place_of_one_is_the_same_step() -> None:
    # GIVEN a list, and two dicts WHEN one holds an equal number, or is written THEN the guard holds
    listed, held, other = [float("1.5")], {"a": float("2.5")}, {"b": 1}
    guard = guarded(("listed", listed), ("held", held), ("other", other))
    assert guard.holds()
    listed[0] = float("1.5")
    assert guard.holds()
    held["a"] = float("2.5")
    assert guard.holds()
    assert guard._rewritten == {id(held)}
    other["b"] = 1
    other["c"] = 2
    # AND where one of them alone holds something else it does not
    assert not guard.holds()
    del other["c"]
    assert guard.holds()
    assert (guard._before, guard._rewritten) == (set(), {id(held), id(other)} & guard._rewritten)
