"""What watching a call notes: places that hold something else, what schedulers do meanwhile, and who watches."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.echoes import without_echoes
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.observe import (
    Change,
    Snapshot,
    _advanced,
    _arrays_written,
    _moved,
    _of_schedulers,
    _same_as_then,
    _unchanged,
    _written,
    busy,
    changes,
    deferring,
    here,
    is_busy,
    look,
    value_of,
)
from paramgraph_kit.trace.reason import Frame


@pytest.mark.parametrize(("reads", "left"), [("k = int(n.max())", 1), ("k = randint(1, int(n.max()))", 2)])
def test_what_the_device_gives_is_not_drawn_by_the_host(reads: str, left: int) -> None:
    # GIVEN a number that is read back, and a line that it decides, in calls that draw what it comes of
    problems = [
        BY_ID["sync-item"].failure("item", Frame("m.py", 3, "f", reads)),
        BY_ID["host-random"].failure("topk got 4 in one call and 5 in the next", Frame("m.py", 4, "f", "x.topk(k)")),
    ]
    # WHEN / THEN it is no draw, unless the host has drawn there too
    assert len(without_echoes(problems)) == left


def taken(holders: list[Holder], **reach: Any) -> Snapshot:
    """A snapshot of these places, as they are now."""
    known: Any = SimpleNamespace(holders=holders, **reach)
    return Snapshot(known, [holder.read() for holder in holders], {}, {}, {}, SimpleNamespace())  # type: ignore[arg-type]


def counting(*keys: Any) -> Any:
    """Names of which only these count."""
    return SimpleNamespace(counts=lambda holder, key: key in keys)


ONE, OTHER = object(), object()


def test_a_place_is_unchanged_where_it_holds_the_same_objects_under_the_same_keys_in_order() -> None:
    # GIVEN contents WHEN compared THEN by identity, of keys and values, in their order
    key, alike = ["a", "1"][0] + "b", ["a", "1"][0] + "b"
    assert key is not alike
    then: dict[str, Any] = {"x": ONE, key: OTHER}
    assert _unchanged(dict(then), then)
    assert _unchanged({}, {})
    assert not _unchanged({"x": ONE}, then)
    assert not _unchanged({**then, "y": 1}, then)
    assert not _unchanged({"x": ONE, key: ONE}, then)
    assert not _unchanged({key: OTHER, "x": ONE}, then)
    assert not _unchanged({"x": ONE, alike: OTHER}, then)


def test_changes_are_those_of_places_that_are_still_reached_and_count() -> None:
    # GIVEN a dictionary, an object's attributes, and one that nothing leads to any more
    held: dict[str, Any] = {"count": 1, "kept": ONE, "old": 2, "same": [1, 2]}
    mine: dict[str, Any] = {"_dynamo_dynamic_indices": 1, "mode": "a"}
    gone: dict[str, Any] = {"count": 1}
    holders = [Holder.of(held, "d"), Holder("attributes", "self", mine), Holder.of(gone, "gone")]
    before = taken(holders)
    held |= {"count": 2, "new": 3, "same": [1, 2]}
    del held["old"]
    mine |= {"_dynamo_dynamic_indices": 2, "mode": "b"}
    gone["count"] = 2
    after = taken(holders[:2])
    within = {(h.kind, id(h.target), h.key) for h in holders}
    everything: Any = SimpleNamespace(counts=lambda holder, key: True)
    # WHEN compared THEN each place that holds something else is told, with both
    found = changes(before, after, everything, within)
    assert [(c.place, c.before, c.after) for c in found] == [
        ("d['count']", 1, 2),
        ("d['old']", 2, EMPTY),
        ("d['new']", EMPTY, 3),
        ("self.mode", "a", "b"),  # what Dynamo notes there is no change
    ]
    # AND only what the code names, and what it can get to
    assert [c.place for c in changes(before, after, counting("new"), within)] == ["d['new']"]
    assert changes(before, after, everything, set()) == []
    assert [c.place for c in changes(before, after, everything, {("attributes", id(mine), "")})] == ["self.mode"]
    # AND such a key elsewhere is a change like any
    noted = {"_dynamo_x": 1}
    holder = Holder.of(noted, "n")
    before = taken([holder])
    noted["_dynamo_x"] = 2
    assert len(changes(before, taken([holder]), everything, {("dict", id(noted), "")})) == 1


def test_a_container_counts_with_what_it_held_before_the_call() -> None:
    # GIVEN a list in a place, that is replaced by another one WHEN compared THEN with what it held then
    inner: list[Any] = [1, 2]
    known: dict[int, dict[Any, Any]] = {id(inner): {0: 1, 1: 2}}
    inner.append(3)
    assert _same_as_then(inner, inner, known)
    assert _same_as_then(inner, [1, 2], known)
    assert not _same_as_then(inner, [1, 2, 3], known)
    assert not _same_as_then(inner, [1, 4], known)
    assert not _same_as_then(inner, (1, 2), known)
    assert not _same_as_then(inner, {0: 1, 1: 2}, known)
    # AND one of which nothing was noted by what it holds now
    assert _same_as_then([1, 2], [1, 2], {})
    assert not _same_as_then([1, 2], [1], {})
    # AND a dictionary by its default too, containers within by theirs
    one, two = defaultdict[str, Any](list, a=1), defaultdict[str, Any](list, a=1)
    three = defaultdict[str, Any](dict, a=1)
    assert _same_as_then(one, two, {id(one): {"a": 1}})
    assert not _same_as_then(one, three, {id(one): {"a": 1}})
    outer = {"inner": inner}
    assert _same_as_then(outer, {"inner": [1, 2]}, known | {id(outer): {"inner": inner}})
    assert not _same_as_then(outer, {"inner": [1, 2, 3]}, known | {id(outer): {"inner": inner}})
    assert not _same_as_then(outer, OrderedDict(inner=[1, 2]), known | {id(outer): {"inner": inner}})


def test_places_are_put_back_where_they_changed_and_sets_only_where_they_hold_others() -> None:
    # GIVEN places of which some change WHEN put back THEN each holds what it held, and an equal set is left alone
    held, items, chosen = {"a": 1}, [1, 2], {1, 2}
    before = taken([Holder.of(held, "d"), Holder.of(items, "l"), Holder.of(chosen, "s")])
    held["a"], held["b"] = 2, 3
    items.pop()
    before.put_back()
    assert (held, items, chosen) == ({"a": 1}, [1, 2], {1, 2})
    chosen.add(3)
    before.put_back()
    assert chosen == {1, 2}
    written: list[str] = []

    class Noting(Holder):
        def write(self, contents: Any) -> None:
            written.append(self.name)

    before = taken([Noting("set", "s", chosen), Noting("dict", "d", held)])
    before.put_back()
    assert written == []
    held["a"] = 7
    chosen.add(9)
    before.put_back()
    assert written == ["s", "d"]


class Scheduler:
    """One that counts its steps, and notes who watches meanwhile."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.rates, self.table, self.number = [1], {"a": 1}, 3

    def step(self, *args: Any, **kwargs: Any) -> str:
        self.made.append((args, kwargs, sys.getprofile()))
        return "stepped"


@pytest.mark.parametrize("run", [True, False])
def test_steps_of_schedulers_are_noted_and_made_unwatched_if_they_run(run: bool) -> None:
    # GIVEN two schedulers, one with a step of its own, and somebody who watches
    first: Any = Scheduler()
    second: Any = Scheduler()
    own = lambda *args: second.made.append((args, {}, sys.getprofile()))  # noqa: E731
    second.step = own
    at: list[int] = []

    def hook(*_: Any) -> None:
        return None

    # WHEN they are stepped while that is deferred
    before = sys.getprofile()
    with deferring([("a", first), ("b", second)], run=run, note=lambda: at.append(len(at))) as calls:
        sys.setprofile(hook)
        try:
            results = [first.step(1, epoch=2), second.step(3)]
            watched = sys.getprofile()
        finally:
            sys.setprofile(before)
    # THEN calls are noted in order, and made or not, with nobody watching
    assert [(scheduler, args, kwargs) for scheduler, args, kwargs in calls] == [
        (first, (1,), {"epoch": 2}),
        (second, (3,), {}),
    ]
    assert at == [0, 1]
    assert watched is hook
    assert results == (["stepped", None] if run else [None, None])
    assert first.made == ([((1,), {"epoch": 2}, None)] if run else [])
    assert second.made == ([((3,), {}, None)] if run else [])
    # AND afterwards each has the step that it had
    assert "step" not in first.__dict__
    assert second.__dict__["step"] is own
    # AND what belongs to a scheduler that was called is no change of the step's
    reach: Any = None
    mine = {id(first.__dict__), id(first.made), id(first.rates), id(first.table)}
    assert _of_schedulers(reach, [(first, (), {})]) == mine
    assert _of_schedulers(reach, []) == set()


def test_who_observes_is_busy_until_the_outermost_ends() -> None:
    # GIVEN a thread that observes a step within a step WHEN asked THEN it is busy all the while
    assert not is_busy()
    with busy():
        with busy():
            assert is_busy()
        assert is_busy()
    assert not is_busy()
    # AND backward passes stay on the thread that asks for them meanwhile
    assert torch.autograd.is_multithreading_enabled()
    with here():
        assert not torch.autograd.is_multithreading_enabled()
    assert torch.autograd.is_multithreading_enabled()


def test_tensors_arrays_and_iterators_are_told_that_were_there_before() -> None:
    # GIVEN tensors that are written, that lie elsewhere, that stay, and one that nobody knew of
    import numpy

    w, v, u = torch.ones(2), torch.ones(2), torch.ones(2)
    array, still = numpy.ones(3), numpy.ones(3)
    tensors = {id(t): (n, t) for n, t in zip("wvu", (w, v, u), strict=True)}
    before: Any = SimpleNamespace(
        reach=SimpleNamespace(tensors=tensors, arrays=[("a", array), ("s", still)]),
        versions={id(w): w._version, id(v): v._version},
        looks={id(w): look(w), id(v): look(v)},
        host={id(array): value_of(array), id(still): value_of(still)},
    )
    assert _written(before, before) == []
    assert _arrays_written(before, before) == []
    w.add_(1)
    u.add_(1)
    array[1] = 5
    # WHEN asked THEN by their names
    assert [(name, t is w) for name, t, _ in _written(before, before)] == [("w", True)]
    assert _arrays_written(before, before) == ["a"]
    assert [_moved(t, before) for t in (w, v, u)] == [False, False, False]
    v.data = torch.ones(2)
    assert [_moved(t, before) for t in (w, v, u)] == [False, True, False]
    v.requires_grad_()
    assert look(v).requires_grad
    # AND of iterators those that the code names and that were there
    old, new = iter([1]), iter([2])
    reach: Any = SimpleNamespace(iterators=[("it", old)])
    narrow: Any = SimpleNamespace(iterators=[("self.it", old), ("new", new)])
    assert _advanced(reach, narrow) == ["self.it, a list_iterator"]


def test_a_change_is_told_by_its_place() -> None:
    # GIVEN / WHEN / THEN
    assert Change(Holder("dict", "self.d", {}), "key", 1, 2).place == "self.d['key']"
