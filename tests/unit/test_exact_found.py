"""What a walk finds of each kind of object: as a place, as something asked, by what name, and up to what size."""

from __future__ import annotations

import array
import contextvars
import functools
import gc
import io
import logging
import queue
import threading
import weakref
from concurrent import futures
from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.backend.asked import LARGE
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import LONG, Reach


class Runner:
    """Has a method that a step may be, and a slot."""

    __slots__ = ("__weakref__", "other", "tensor")

    def __init__(self) -> None:
        self.tensor = torch.ones(2)
        self.other = torch.ones(3)

    def run(self) -> torch.Tensor:
        return self.tensor


def reached(value: Any, name: str = "it", **how: Any) -> Reach:
    return Reach([(name, value)], [], Names(**how))


def whole(reach: Reach, kind: str) -> list[tuple[str, bool]]:
    return [(holder.name, holder.whole) for holder in reach.holders if holder.kind == kind]


@pytest.mark.parametrize(("name", "owner"), [("model.run", "model"), ("run", "self"), ("", "self")])
def test_a_method_leads_to_its_object_by_what_stands_before_its_name(name: str, owner: str) -> None:
    # GIVEN a method, by a name with a dot or without WHEN walked THEN its object has the name before that
    reach = reached(Runner().run, name)
    assert sorted(found for found, _ in reach.tensors.values()) == [f"{owner}.other", f"{owner}.tensor"]


def test_a_method_of_c_leads_to_its_object_and_a_function_of_c_to_nothing() -> None:
    # GIVEN what appends to a list, and functions of modules and of classes of C's WHEN walked THEN the list is found
    held = [torch.ones(2)]
    reach = reached(held.append)
    assert whole(reach, "sequence") == [("it", True)]
    for function in (len, torch.add, dict.fromkeys):
        assert whole(reached(function), "sequence") == []
        assert not any(holder.target in (dict, torch) for holder in reached(function).holders)


def test_slots_are_walked_that_code_names_where_a_walk_is_narrow() -> None:
    # GIVEN an object with slots, of which code names one WHEN walked narrowly THEN that is found, else both
    runner = Runner()
    for narrow, found in ((True, ["it.tensor"]), (False, ["it.other", "it.tensor"])):
        reach = Reach([("it", runner)], [], Names(known={"tensor"}), narrow=narrow)
        assert sorted(name for name, _ in reach.tensors.values()) == found


def test_places_that_hold_one_thing_count_as_a_whole() -> None:
    # GIVEN a cached function, a variable of a context, bytes, a function WHEN walked THEN each is a whole
    variable: Any = contextvars.ContextVar("variable")
    variable.set([torch.ones(2)])
    cached = functools.cache(lambda x: [x])
    cached(3)
    reach = reached([cached, variable, bytearray(b"ab"), array.array("f", [1.0])])
    assert whole(reach, "cached") == [("it[0]", True)]
    assert whole(reach, "context") == [("it[1]", True)]
    assert whole(reach, "bytes") == [("it[2]", True), ("it[3]", True)]
    assert [flag for _, flag in whole(reach, "function")] == [True]
    assert {name for name, _ in whole(reach, "sequence")} == {"it", "it[0](...)", "it[1]"}
    # AND so does a module's own dict of members
    found = [each for each in whole(reached(torch.nn.Linear(2, 2)), "dict") if each[0] == "it"]
    assert found == [("it", True)] * 3


def test_iterators_of_c_are_told_and_files_are_none() -> None:
    # GIVEN iterators, a generator, and a file, which one can iterate over WHEN walked THEN those of C are told
    rows = [iter([1]), zip([1], [2], strict=True), io.BytesIO(b"a\nb"), (n for n in range(3))]
    found = reached(rows).iterators
    assert [(name, value is rows[n]) for n, (name, value) in enumerate(found[:2])] == [("it[0]", True), ("it[1]", True)]
    assert not any(value is rows[2] for _, value in found)


@pytest.mark.parametrize(("more", "unseen"), [(-1, False), (0, False), (1, True)])
def test_arrays_and_bytes_are_looked_into_up_to_a_limit(more: int, unseen: bool) -> None:
    # GIVEN arrays of bytes around the limit WHEN walked THEN a larger one is told with its size
    count = LARGE + more
    text = f"is an array of {count:,} bytes"
    for value in (np.zeros(count, np.uint8), bytearray(count), array.array("b", bytes(count))):
        assert reached(value).unseen == ([("it", text)] if unseen else [])
    # AND one of objects is asked for them
    held = [torch.ones(2)]
    objects = np.array([held, None], dtype=object)
    reach = reached(objects)
    (asked,) = [holder for holder in reach.holders if holder.kind == "asked"]
    assert asked.read() == {"": (held, None)}
    assert len(reach.tensors) == 1


@pytest.mark.parametrize(
    ("items", "unseen"),
    [
        ([1] * (LONG + 1), False),
        ([1] * LONG + [[2]], True),
        ([[2]] + [1] * LONG, True),
        ([[2]] * LONG, False),
    ],
)
def test_a_long_list_is_told_where_any_of_it_may_change(items: list[Any], unseen: bool) -> None:
    # GIVEN long lists of numbers, with one list among them, and one that is just short enough WHEN walked THEN so
    text = f"has {LONG + 1:,} items, each of which may change"
    assert reached(items).unseen == ([("it", text)] if unseen else [])


def test_a_weak_reference_is_asked_whether_it_is_alive() -> None:
    # GIVEN a weak reference WHEN its object goes THEN it answers otherwise
    runner = Runner()
    reach = reached(weakref.ref(runner))
    alive = next(holder for holder in reach.holders if holder.kind == "asked" and holder.key == "")
    assert alive.read() == {"": True}
    del runner, reach  # which holds what it has found
    gc.collect()
    assert alive.read() == {"": False}


def test_what_a_thread_sees_of_its_own_is_walked() -> None:
    # GIVEN a thread's own variables, with a tensor WHEN walked THEN it is found
    local = threading.local()
    local.x = torch.ones(2)
    assert [name for name, _ in reached(local).tensors.values()] == ["it['x']"]


def test_a_step_inside_of_another_one_leads_to_its_function_and_is_no_object_itself() -> None:
    # GIVEN a step inside of another one WHEN walked THEN it leads to what it wraps
    held = [torch.ones(2)]
    step: Any = pgk.parameterize(lambda x: x + held[0], state=())
    reach = reached(step)
    assert not any(each is step for each in reach.objects)
    assert [name for name, _ in reach.tensors.values()] == ["held[0]"]


def test_what_is_private_to_python_of_a_module_is_not_walked_though_code_looks_names_up() -> None:
    # GIVEN a user's module and code that looks names up WHEN walked THEN all but its dunder names is found
    import types

    made: Any = types.ModuleType("mine")
    made.held, made.__hidden__ = [1], [2]
    assert [name for name, _ in whole(reached(made, dynamic=True), "sequence")] == ["it.held"]


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (threading.Event, True),
        (queue.Queue, True),
        (threading.Condition, False),  # which tells nothing
        (logging.Formatter, False),
        (futures.Future, False),
        (Runner, True),
    ],
)
def test_objects_of_python_s_threads_are_known_where_they_answer_and_loggers_and_futures_by_answers_alone(
    made: Any, known: bool
) -> None:
    # GIVEN objects of the user's and of Python's modules for threads and logging WHEN walked THEN these have a class
    value = made()
    assert any(each is value for each in reached(value).objects) is known
