"""Exact values at the ends of ranges, of texts and of names, where one more or less would go unseen."""

from __future__ import annotations

import struct
import time
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.capture.pair import Kind
from paramgraph_kit.capture.unused import unused_bytes
from paramgraph_kit.driver.native.places import ABSENT, Place
from paramgraph_kit.driver.phantom_layout import Layout
from paramgraph_kit.driver.sim.allocator import CachingAllocator
from paramgraph_kit.launch.plan import needs_of
from paramgraph_kit.partition.fixed import MOST, _is_small_on_the_host
from paramgraph_kit.partition.frames import user_frame
from paramgraph_kit.step.guard import _places_of
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import Reach
from paramgraph_kit.step.steady import Entering
from paramgraph_kit.step.values import shown
from paramgraph_kit.step.verify import _as
from tests.unit.test_capture_unused import PHANTOM, STRIDED, calculator, is_pointer, node
from tests.unit.test_launch_plan import captured, chain
from tests.unit.test_sim_allocator import MIB, Device, check


def test_of_a_class_what_operators_call_counts_and_of_an_object_what_code_names() -> None:
    # GIVEN the attributes of an object and of its class, and code that names one
    names = Names(known={"rate"})
    target = SimpleNamespace()
    # WHEN asked THEN of both what is named counts, and of the class besides what nobody has to name
    for kind, special in (("attributes", False), ("class", True)):
        holder = Holder(kind, "it", target)
        assert [names.counts(holder, key) for key in ("rate", "other", "__add__")] == [True, False, special]


def test_a_global_name_that_is_not_there_is_watched_as_absent() -> None:
    # GIVEN a name with a value, without one, and one that the step writes itself
    space = {"there": 2.0}
    for name, expected, values in (("there", {"": 2.0}, (2.0,)), ("gone", {"": EMPTY}, (ABSENT,)), ("own", {}, None)):
        # WHEN compared by identity THEN with what it held
        places = list(_places_of(Holder("global", name, space, name), expected))
        assert places == ([] if values is None else [Place("global", space, values, name)])


def test_memory_of_nobody_in_particular_is_the_default_streams() -> None:
    # GIVEN a block that was given back
    allocator = CachingAllocator(Device())
    first = allocator.alloc(512)
    assert first is not None
    allocator.free(first)
    # WHEN the default stream asks for as much, and another one
    # THEN it is the same memory for that alone
    assert allocator.alloc(512, 1) != first
    assert allocator.alloc(512, 0) == first


@pytest.mark.parametrize(("rest", "kept"), [(1 * MIB, False), (1 * MIB + 512, True)])
def test_a_large_block_is_split_where_more_than_a_mebibyte_is_left(rest: int, kept: bool) -> None:
    # GIVEN a block of 20 MiB that was given back
    allocator = CachingAllocator(Device())
    first = allocator.alloc(20 * MIB)
    assert first is not None
    allocator.free(first)
    # WHEN less is asked for THEN the rest is a block of its own where it is large enough
    assert allocator.alloc(20 * MIB - rest) == first
    assert (first + 20 * MIB - rest in allocator.blocks) is kept
    check(allocator)


def test_the_second_sides_addresses_are_moved_alike_wherever_its_range_begins() -> None:
    # GIVEN ranges that begin at odd multiples of 16 and of 32 MiB WHEN begun THEN both sides are at their places
    for base in ((1 << 44) + (1 << 24), (1 << 44) + (1 << 25)):
        assert [Layout(base, 1 << 40, side).end - base for side in (0, 1)] == [0, 0x5A5A00]


@pytest.mark.parametrize("more", [0, 8])
def test_a_closure_of_another_size_has_no_gap_that_is_known(more: int) -> None:
    # GIVEN a clamp's closure over two strided tensors, or one with something more in it
    limits = struct.pack("<iff", 2, -0.5, 0.5) + b"\xa5" * 4 + struct.pack("<Q", 1 << 40) + b"\x01" * more
    name = "22gpu_kernel_impl_nocastIZZZNS0_19launch_clamp_scalarEvENKUlvE5_clEvEUlfE_EEvERKT_EUliE_EEviT1_"
    closure = calculator((5,), 2) + struct.pack("<2Q", *[PHANTOM] * 2) + limits + struct.pack("<Q", 1 << 40)
    kernel = node(STRIDED + name, struct.pack("<i", 9), closure)
    at = kernel.parameters.index(limits)
    # WHEN asked THEN a gap is named where the size is that of so many tensors
    assert bool(unused_bytes(kernel, is_pointer) & set(range(at, at + len(limits)))) is (more == 0)


def test_an_allocation_that_nodes_use_one_after_the_other_is_needed_in_one_run() -> None:
    # GIVEN a chain of kernels WHEN asked who needs what is in between
    needs = needs_of(captured(chain(4), [512] * 5, [[0], [0, 1], [1, 2], [2, 3], [3]], 1, [4]))
    # THEN it is a range, which costs nothing however long it is
    assert [needs[i] for i in (1, 2, 3)] == [range(2), range(1, 3), range(2, 4)]


@pytest.mark.parametrize("source", [1, 2, 3, 4])
def test_a_gradient_stays_that_comes_in_behind_the_arguments_and_the_cells_before_it(source: int) -> None:
    # GIVEN a launch with two arguments, whose second cell is a gradient that comes out where a tensor came in
    captured: Any = SimpleNamespace(outputs=[SimpleNamespace(kind=Kind.ARGUMENT, source=source)])
    buffer, gradient = (
        SimpleNamespace(holder=Holder(kind, "w", torch.ones(1)), reads=[0], exits=exits)
        for kind, exits in (("buffer", [None]), ("gradient", [0]))
    )
    cells: Any = [buffer, gradient]
    # WHEN a step is about to be entered THEN it has to be written unless that is where it came in
    written = Entering(captured, 2, cells).written
    assert (gradient not in written) is (source == 3)
    assert buffer in written


def test_texts_of_forty_letters_are_shown_whole() -> None:
    # GIVEN texts WHEN shown THEN forty letters are, quotes included, and of more the first
    assert shown("x" * 38) == repr("x" * 38)
    assert shown("x" * 39) == f"'{'x' * 36}..."


def test_what_lies_under_a_key_without_a_short_text_is_named_by_its_dictionary() -> None:
    # GIVEN tensors under a name, a number, and a pair
    held = {key: torch.ones(1) for key in ("a", 3, (1, 2))}
    # WHEN walked THEN the pair is not spelled
    reach = Reach([("d", held)], [], Names())
    assert sorted(name for name, _ in reach.tensors.values()) == ["d['a']", "d[...]", "d[3]"]


def test_a_librarys_wrapper_leads_to_what_it_says_that_it_wraps() -> None:
    # GIVEN a function of the user's that reads a variable, behind one of torch's that only says so
    rate = 2.0

    def mine() -> float:
        return rate

    wrapper = types.FunctionType(torch.nn.functional.relu.__code__, vars(torch.nn.functional))
    bare = [holder.name for holder in Reach([("f", wrapper)], [], Names()).holders]
    for attribute in ("__wrapped__", "_torchdynamo_orig_callable"):
        wrapper = types.FunctionType(torch.nn.functional.relu.__code__, vars(torch.nn.functional))
        setattr(wrapper, attribute, mine)
        # WHEN walked THEN the variable is found
        found = [holder.name for holder in Reach([("f", wrapper)], [], Names()).holders]
        assert "rate" in found
        assert "rate" not in bare


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
def test_preparing_a_step_takes_a_part_of_the_time_that_went_by() -> None:
    # GIVEN a step that is captured
    total = torch.zeros(4, device=pgk.device())
    step = pgk.parameterize(lambda x: total.add_(x).clone(), state=(total,))
    began = time.perf_counter()
    for _ in range(3):
        step(torch.ones(4, device=pgk.device()))
    passed = time.perf_counter() - began
    # WHEN asked how long it took to prepare THEN that was some of it
    (own,) = [graph for graph in compiled_graphs() if graph.owner is not None and graph.owner() is step]
    ((launcher,),) = [own.launchers]
    (variant,) = launcher.variants.values()
    assert variant is not None
    assert 0 < variant.prepared_s < passed


def test_memory_that_is_no_whole_number_of_values_is_compared_byte_by_byte() -> None:
    # GIVEN seven and eight bytes WHEN taken as numbers of four THEN only the eight are
    for count, dtype in ((7, torch.uint8), (8, torch.float32)):
        assert _as(torch.zeros(count, dtype=torch.uint8), torch.float32).dtype is dtype


def test_a_tensor_of_the_host_is_small_up_to_its_limit() -> None:
    # GIVEN as many values as are kept, and one more WHEN asked THEN the first are small
    assert [_is_small_on_the_host(torch.zeros(count)) for count in (MOST, MOST + 1)] == [True, False]


def test_a_line_without_its_text_is_not_given_the_next_ones_place() -> None:
    # GIVEN a stack in which the text of the last but one line is not there
    first, last = '  File "/home/me/a.py", line 3, in f', '  File "/home/me/b.py", line 5, in g'
    # WHEN asked for the user's line THEN its text is empty, and that of a line with one is there
    for trace, text in ((f"{first}\n{last}\n    y = x + 1", "y = x + 1"), (f"{first}\n    y = f(x)\n{last}", "")):
        frame = user_frame(trace)
        assert frame is not None
        assert (frame.line, frame.text) == (5, text)
