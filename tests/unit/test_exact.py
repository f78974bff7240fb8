"""Exact values where one more, one less or the other branch would pass unseen."""

from __future__ import annotations

import copy
import os
import time
import types
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import paramgraph_kit as pgk
from paramgraph_kit.backend.plain import same
from paramgraph_kit.capture.calculators import _divides
from paramgraph_kit.capture.pair import Kind, Output, _moved, _Segments, describe, is_seed_on_host
from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.tensors import _weights
from paramgraph_kit.launch import probation
from paramgraph_kit.launch.dying import dies_here
from paramgraph_kit.launch.generate import Form, _flat, launch_function
from paramgraph_kit.launch.plan import uses_of
from paramgraph_kit.step.arguments import Arguments
from paramgraph_kit.step.called import called_in
from paramgraph_kit.step.entry import let_go
from paramgraph_kit.step.guard import Guard
from paramgraph_kit.step.holders import Holder, cached_by
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.observe import Change
from paramgraph_kit.step.reach import Reach
from paramgraph_kit.step.release import _let_go
from paramgraph_kit.step.spent import is_spent
from paramgraph_kit.step.streams import Streams
from paramgraph_kit.step.verify import Memory
from paramgraph_kit.trace.model import Word, WordKind

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def test_the_first_time_of_each_way_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a graph that is measured, whose first call either way takes longer than all that follow
    now, taken = 0.0, iter([900, 800, 1, 10, 2, 20, 3, 30])

    def call(_: list[Any]) -> list[Any]:
        nonlocal now
        now += next(taken) / 1e6
        return []

    monkeypatch.setattr(probation, "time", SimpleNamespace(perf_counter=lambda: now))
    waits: Any = SimpleNamespace(wait=lambda: None)
    captured: Any = None
    trial = probation.Probation(waits, captured, call, call, call, verify="off", measure=True)
    # WHEN each way has had its turns
    for _ in range(8):
        trial([])
    # THEN medians are those of the others
    assert trial.measured is not None
    assert (round(trial.measured.graph_us), round(trial.measured.ungraphed_us), trial.measured.samples) == (2, 20, 3)


def nested(depth: int) -> list[Any]:
    found: list[Any] = [float("1.5")]  # an object of its own
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(("depth", "alike"), [(0, True), (7, True), (8, False)])
def test_values_are_compared_eight_containers_deep(depth: int, alike: bool) -> None:
    # GIVEN two values that are the same WHEN compared THEN so they are, as deep as anybody looks
    one, other = nested(depth), nested(depth)
    assert one is not other
    assert same(one, other) is alike


def test_the_current_stream_stands_where_none_is_named() -> None:
    # GIVEN the streams of a call WHEN one is asked for by its number THEN that of none is the current one's
    side = pgk.cuda.Stream()
    streams = Streams(driver())
    with pgk.cuda.stream(side):
        inside = streams._number(None)
    assert inside == streams._number(side) == side.cuda_stream
    assert streams._number(None) == streams._current() != inside


def test_what_is_written_before_two_calls_in_a_row_is_read_from_then_on() -> None:
    # GIVEN a step that reads a dict
    kept = {"scale": 2.0}
    step = pgk.parameterize(lambda x: x * kept["scale"], state=[kept], verify="off")
    x = torch.ones(3, device=pgk.device())
    for _ in range(3):
        step(x)
    (guard,) = [each._guard for graphs in step._graphs.values() for each in graphs]
    assert isinstance(guard, Guard)

    def read_always(holder: Holder) -> bool:
        return holder.target is kept

    def volatile() -> bool:
        return any(read_always(holder) for holder, _ in guard._volatile)

    # WHEN it is written before every other call THEN its version is asked
    for number in range(6):
        if number % 2:
            kept["scale"] = float("2.0")
        assert torch.equal(step(x), x * 2)
    assert not volatile()
    # WHEN before two calls in a row THEN it is read from then on
    for _ in range(2):
        kept["scale"] = float("2.0")
        assert torch.equal(step(x), x * 2)
    assert volatile()
    # AND what it holds counts all the same
    kept["scale"] = 3.0
    assert torch.equal(step(x), x * 3)


def test_a_launch_that_depends_on_nothing_asks_nothing() -> None:
    # GIVEN a graph without inputs, all of whose kernels are ours, which no switch of a library concerns
    device = pgk.device()
    step = pgk.parameterize(lambda: torch.zeros(3, device=device), state=[], verify="off")
    for _ in range(4):
        step()
    (graphed,) = [each for graphs in step._graphs.values() for each in graphs]
    variant = graphed.variant
    recording = copy.copy(variant.captured.recording)
    recording.nodes = [replace(node, name=f"pgk_{node.name}") for node in recording.nodes]
    captured = replace(variant.captured, recording=recording)

    def never(_: list[Any]) -> Any:
        raise AssertionError("a call that it was captured for")

    # WHEN its launch is generated THEN there is no test in it, and it launches
    code = step._launcher.code
    launch = launch_function(
        driver(), captured, variant.plan, variant.executables, variant.state, never, never, code, Form()
    )
    assert "otherwise" not in str(launch.__doc__)
    assert torch.equal(launch([])[0], torch.zeros(3, device=device))


def test_a_seed_on_the_host_is_a_whole_number_without_dimensions_there() -> None:
    # GIVEN values of a call WHEN asked which may be a seed of attention's on the host THEN it is exactly this one
    device = pgk.device()
    assert is_seed_on_host(torch.zeros((), dtype=torch.int64))
    others = [torch.zeros((), dtype=torch.int64, device=device), torch.zeros(()), torch.zeros(1, dtype=torch.int64), 3]
    assert not any(is_seed_on_host(value) for value in others)


def test_a_segment_ends_before_its_end() -> None:
    # GIVEN two segments WHEN asked THEN what is in them is, and neither what is before, between nor behind
    segments = _Segments([(64, 8), (16, 8)])
    assert [at for at in range(100) if at in segments] == [*range(16, 24), *range(64, 72)]


def test_an_input_that_somebody_else_holds_does_not_die_in_the_call() -> None:
    # GIVEN inputs that only the call's list holds, that a name holds, and that a view holds WHEN asked
    inputs = [torch.ones(4, device=pgk.device()) for _ in range(3)]
    held, view = inputs[1], inputs[2][1:]
    # THEN only the first one's memory is free after the call
    assert [dies_here(inputs, n) for n in range(3)] == [True, False, False]
    del held, view
    assert all(dies_here(inputs, n) for n in range(3))


def test_the_weights_of_a_digest_are_odd_and_none_comes_twice() -> None:
    # GIVEN as many as are used at once WHEN looked at THEN each place counts, and counts by itself
    weights = _weights(5000, torch.device("cpu"))
    assert (weights % 2 != 0).all()
    assert len(set(weights.tolist())) == 5000


def test_only_plain_gradients_that_a_walk_has_found_are_let_go() -> None:
    # GIVEN places of gradients: none, a sparse one, one that no walk has found, and one that it has
    sparse = torch.eye(2).to_sparse()
    unknown, known = torch.ones(2), torch.ones(3)
    contents: list[dict[str, Any]] = [{"": gradient} for gradient in (None, sparse, unknown, known)]
    tensors = {id(sparse): ("sparse", 0), id(known): ("known", 1)}
    holders = [SimpleNamespace(kind="gradient") for _ in contents]
    reach: Any = SimpleNamespace(holders=holders, tensors=tensors, forget=lambda keys: None)
    # WHEN they are let go THEN it is the last alone
    found = let_go(reach, contents)
    assert [old.name for old in found] == ["known"]
    assert [held[""] for held in contents] == [None, sparse, unknown, None]
    assert list(tensors) == [id(sparse)]


def test_a_like_of_what_was_held_comes_to_its_own_place_alone() -> None:
    # GIVEN two dicts that hold the same tensor under two names each, of which one place changed
    tensor, like = torch.ones(2), torch.ones(2)
    one, other = {"a": tensor, "b": tensor}, {"a": tensor}
    holders = [Holder.of(one, "one"), Holder.of(other, "other")]
    contents = [dict(one), dict(other)]
    told: list[Any] = []
    reach = SimpleNamespace(holders=holders, let_go=lambda old, new: told.extend((old, new)))
    seen: Any = SimpleNamespace(after=SimpleNamespace(reach=reach, contents=contents))
    change = Change(holders[0], "a", None, tensor)
    # WHEN its like stands there from now on THEN it does there, and nowhere else
    assert _let_go(seen, change, {id(tensor): (tensor, like)}).after is like
    assert one["a"] is like
    assert [told[0] is tensor, told[1] is like] == [True, True]
    assert [[value is like for value in held.values()] for held in contents] == [[True, False], [False]]
    # AND a list that holds it is the user's, whom nobody else knows
    many = {"a": [tensor]}
    change = Change(Holder.of(many, "many"), "a", None, many["a"])
    assert _let_go(seen, change, {id(tensor): (tensor, like)}) is change
    assert many["a"][0] is tensor


def test_a_stand_in_for_outputs_of_several_types_is_of_bytes() -> None:
    # GIVEN outputs in one allocation WHEN a stand-in for all is made THEN it has their type, or bytes where they differ
    one, other = (Output(Kind.FRESH, 3, dtype=dtype) for dtype in (torch.float32, torch.int64))
    assert _flat([one, one], 20) == Output(Kind.FRESH, 3, 0, (8,), (1,), torch.float32)
    assert _flat([one, other], 20) == Output(Kind.FRESH, 3, 0, (32,), (1,), torch.uint8)
    assert _flat([other, one], 33) == Output(Kind.FRESH, 3, 0, (48,), (1,), torch.uint8)


def test_a_divisor_has_less_than_32_bits() -> None:
    # GIVEN the largest that there is, and one more, each with the numbers that divide by it WHEN asked
    assert _divides((1 << 31) - 1, ((1 << 32) * 1) // ((1 << 31) - 1) + 1, 31)
    assert not _divides(1 << 31, 1, 31)
    assert not _divides(0, 1, 0)


def test_the_other_capture_s_allocations_lie_where_its_ranges_do() -> None:
    # GIVEN allocations in two ranges, of which the other capture has others
    made = [RawAllocation(100, 8, 0), RawAllocation(164, 8, 1, 5), RawAllocation(1016, 4, 2)]
    # WHEN moved THEN each is as far into its own range
    moved = _moved(made, [100, 1000], [70000, 9000])
    assert moved == [RawAllocation(70000, 8, 0), RawAllocation(70064, 8, 1, 5), RawAllocation(9016, 4, 2)]


def test_only_pointers_to_allocations_use_them() -> None:
    # GIVEN words of two nodes: a pointer to nobody's memory, a number that says an allocation, and pointers
    pointer = partial(Word, kind=WordKind.POINTER)
    first = [pointer(0), Word(8, WordKind.SCALAR, 7), pointer(16, allocation=3), pointer(24, allocation=3)]
    captured: Any = SimpleNamespace(words=[first, [pointer(0, allocation=3), pointer(8, allocation=1)]])
    # WHEN asked which nodes use which THEN only the latter count, each node once
    assert uses_of(captured) == {3: [0, 1], 1: [1]}


def walked(*roots: tuple[str, Any], own: tuple[str, ...] = ()) -> Reach:
    return Reach(roots, [], Names(known=set(own), own=set(own)))


def test_of_a_library_s_module_settings_are_looked_at_that_code_names_and_no_modules() -> None:
    # GIVEN a module of a library's, with a number, another one that nobody names, and a module inside
    library: Any = types.ModuleType("library")
    library.__spec__ = mock.sentinel.found
    library.scale, library.other, library.inner = 2.0, 3.0, types.ModuleType("inner")
    # WHEN walked THEN the number is a place that may change
    reach = walked(("library", library), own=("scale", "inner"))
    assert [h.key for h in reach.holders if h.kind == "global" and h.target is vars(library)] == ["scale"]


def test_classes_are_looked_at_with_their_bases_once_and_without_those_of_libraries() -> None:
    # GIVEN two classes with one base, which has one of Python's
    class Base(dict):  # type: ignore[type-arg]
        rate = 2.0

    class One(Base):
        pass

    class Other(Base):
        pass

    # WHEN objects of both are walked THEN each class has a place, and the base one
    reach = walked(("one", One()), ("other", Other()))
    assert [h.target for h in reach.holders if h.kind == "class"] == [One, Base, Other]


def test_who_reads_the_environment_by_either_name_has_it_looked_at() -> None:
    # GIVEN functions that read it as an attribute, by a global name, and not at all
    def by_attribute() -> str:
        return os.environ["HOME"]

    names: dict[str, Any] = {"getenv": os.getenv}
    exec("def by_name(): return getenv('HOME')", names)
    # WHEN walked THEN the first two lead to it
    for function, reads in ((by_attribute, True), (names["by_name"], True), (nested, False)):
        assert any(h.name == "os.environ" for h in walked(("f", function)).holders) is reads


def test_members_of_what_has_no_name_have_their_own() -> None:
    # GIVEN a module WHEN walked with a name and without THEN its members are called so, and by nothing before a dot
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module.own = [torch.ones(1)]  # type: ignore[assignment]
    members = ["0.weight", "0.bias", "own[0]"]
    for name, names in (("net", [f"net.{each}" for each in members]), ("", members)):
        assert sorted(each for each, _ in walked((name, module)).tensors.values()) == sorted(names)


def test_a_result_is_spent_once_what_its_backward_needs_is_freed() -> None:
    # GIVEN results through constants, which have no operation of their own
    x = torch.ones(2, requires_grad=True)
    results: list[Any] = [1 + (x * torch.ones(2)).exp().sum() * 3, (torch.ones(2) + x.exp()).sum()]
    for result in results:
        # WHEN asked before and after their backward THEN it tells
        before = is_spent(result)
        result.backward()
        assert [before, is_spent(result)] == [False, True]


def test_a_class_gets_back_what_it_had_and_loses_what_came() -> None:
    # GIVEN a class that was given other attributes
    class Settings:
        rate = 2.0

    holder = Holder("class", "Settings", Settings)
    contents = holder.read()
    Settings.rate = 3.0
    Settings.more = 1  # type: ignore[attr-defined]
    # WHEN it is put back THEN it has what it had, and no more
    holder.write(contents)
    assert Settings.rate == 2.0
    assert not hasattr(Settings, "more")


def test_calls_of_tensors_are_remembered_where_no_mode_hears_them() -> None:
    # GIVEN arguments of tensors alone WHEN their key is made THEN it is remembered, but not under a default device
    device, arguments = pgk.device(), Arguments(driver())
    x, y = torch.ones(2, device=device), torch.ones(3, device=device)
    with torch.device(device):
        arguments.of((x, y), {})
    assert arguments._looks == []
    arguments.of((x, y), {})
    assert len(arguments._looks) == 1
    # AND where another one is a number, its key is another one, whoever compares
    for asked in (nullcontext(), mock.patch("paramgraph_kit.step.arguments.checks", return_value=None)):
        with asked:
            keys = [arguments.of((x, other), {})[0] for other in (y, 2, 3, y)]
        assert [key == keys[0] for key in keys] == [True, False, False, True]


def test_captures_take_no_longer_than_the_call_that_makes_them() -> None:
    # GIVEN a step WHEN it is captured THEN both captures' seconds are some, and fewer than those of the calls
    started = time.perf_counter()
    step = pgk.parameterize(lambda x: x * 2, state=(), verify="off")
    for _ in range(3):
        step(torch.ones(3, device=pgk.device()))
    (graphed,) = [each for graphs in step._graphs.values() for each in graphs]
    assert 0 < graphed.variant.captured.capture_s < time.perf_counter() - started


def test_a_guard_asks_in_c_where_all_of_it_can_be_asked_so() -> None:
    # GIVEN a step that is launched, with what is built of C++
    native = checks()
    if native is None:
        pytest.skip("nothing is built of C++ here")
    weight = torch.ones(3, device=pgk.device())
    step = pgk.parameterize(lambda x: x * weight, state=[weight], verify="off")
    for _ in range(4):
        step(torch.ones(3, device=pgk.device()))
    (guard,) = [each._guard for graphs in step._graphs.values() for each in graphs]
    # WHEN it has held once THEN the next call asks all at once
    assert guard.holds()
    assert guard._checks is not None
    assert None not in guard._checks
    assert guard._at_once(native, guard._checks)


def test_compiled_code_has_run_once_dynamo_s_has() -> None:
    # GIVEN the code that Dynamo calls compiled code from, and other code of libraries
    functions: Any = torch.nn.functional
    names = Names()
    # WHEN it runs THEN it is known, from then on
    known = []
    contexts: Any = torch._dynamo.eval_frame
    disabled, compiled = contexts.DisableContext.__call__, contexts._TorchDynamoContext.__call__
    for function in (functions.silu, disabled, compiled, functions.relu):
        names.add(function.__code__, vars(functions))
        known.append(names.compiled)
    assert known == [False, False, True, True]


class Restless(TwoTensor):
    """Tells something else about itself at each look."""

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], object()


@pytest.mark.parametrize(("kind", "more"), [(TwoTensor, [None, False, torch.Size([2])]), (Restless, [])])
def test_of_a_subclass_all_is_looked_at_that_stays_between_two_looks(kind: Any, more: list[Any]) -> None:
    # GIVEN a tensor of two inside, which tells the same at each look, or not WHEN walked
    x, y = torch.ones(2), torch.zeros(2)
    (holder,) = (each for each in walked(("x", kind(x, y))).holders if each.kind == "asked")
    # THEN the two inside are looked at, and what else there is to it where that says something
    one, other, *rest = holder.read()[""]
    assert [one is x, other is y, rest] == [True, True, more]


def test_an_input_reaches_from_its_first_to_its_last_element() -> None:
    # GIVEN a matrix of floats, and parts of it WHEN described THEN bytes are counted in its strides, ends included
    x = torch.zeros(4, 6, device=pgk.device())
    parts = [x, x.t(), x[1:3], x[:, ::2], x[2, 3], x[:0], x[:1].expand(5, 6), 3]
    assert [spec and spec.nbytes for spec in describe(driver(), parts)] == [96, 96, 48, 92, 4, 0, 24, None]


def test_a_place_is_called_as_the_code_names_it() -> None:
    # GIVEN places of containers and objects WHEN named THEN with their keys, where these say something
    kept: dict[Any, Any] = {"a": 1, 2: 1, (3,): 1}
    assert [Holder.of(kept, "kept").place(key) for key in kept] == ["kept['a']", "kept[2]", "kept[...]"]
    assert [Holder("attributes", name, {}).place("x") for name in ("m", "")] == ["m.x", "x"]
    assert Holder("gradient", "w", torch.ones(1)).place("") == "w.grad"


@pytest.mark.parametrize(("nbytes", "device"), [(16 << 20, pgk.device()), ((16 << 20) + 1, "cpu")])
def test_a_state_of_more_than_16_mib_is_copied_to_the_host(nbytes: int, device: str) -> None:
    # GIVEN a state of so many bytes WHEN it is copied THEN the copy is on the device, or on the host
    state = torch.ones(nbytes, dtype=torch.uint8, device=pgk.device())
    (copied,) = Memory([state]).copies()
    assert copied.device.type == torch.device(device).type
    assert int(copied[-1]) == 1


def test_of_a_cache_that_forgets_what_it_keeps_is_looked_at_and_not_how() -> None:
    # GIVEN a cache of two, with an attribute of somebody's WHEN looked into THEN its values are there, and no dict
    def double(x: int) -> list[int]:
        return [2 * x]

    cached: Any = lru_cache(maxsize=2)(double)
    cached.note = "mine"
    values = [cached(n) for n in range(3)]
    kept = list(cached_by(cached).values())
    assert not any(isinstance(x, dict) for x in kept)
    assert any(x is double for x in kept)
    assert values == [[0], [2], [4]]


def test_what_no_walk_has_found_has_no_name() -> None:
    # GIVEN arguments, one of which a walk has found WHEN a launch's are named THEN the other has none
    known, unknown = torch.ones(1), torch.ones(1)
    reach = SimpleNamespace(tensors={id(known): ("x", known)}, objects=[])
    seen: Any = SimpleNamespace(before=SimpleNamespace(reach=reach))
    called = called_in(driver(), [known, unknown], seen, [], [], 1, [], {})
    assert called.inputs == ("x", "")
    assert called.results == ("",)
