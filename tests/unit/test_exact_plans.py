"""Exact values where a plan, a key or an order would be one off, and nothing else would show it."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from paramgraph_kit.capture import words
from paramgraph_kit.capture.flash import _DETERMINISTIC, _HEADS, _SCALES, _scale
from paramgraph_kit.capture.pair import Captured, InputSpec, is_anchored
from paramgraph_kit.capture.unused import _offset_calculators
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.sim import allocator
from paramgraph_kit.driver.tensors import digests
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.launch.plan import MOST_BLOCK, Block, make_plan, needs_of
from paramgraph_kit.partition.nodes import is_random, launches
from paramgraph_kit.trace.model import NodeKind
from tests.unit.test_capture_flash import BACKWARD, backward
from tests.unit.test_capture_unused import calculator
from tests.unit.test_launch_plan import captured, chain

aten = torch.ops.aten


@pytest.mark.parametrize(("start", "meets"), [(0, False), (1, True), (15, True), (16, False)])
def test_a_word_meets_an_address_with_one_byte_in_common(start: int, meets: bool) -> None:
    # GIVEN two captures that hold an address of eight bytes somewhere beside the word at byte 8
    address = 0x1122_3344_5566_7788
    parameters = b"\xee" * start + address.to_bytes(8, "little") + b"\xee" * (24 - start)
    nodes = (RawNode(NodeKind.KERNEL, "k", parameters, ()),) * 2
    # WHEN asked THEN it is met where at least a byte is in both
    assert words._meets_address(nodes, (address.__eq__,) * 2, 8) is meets


def test_generated_kernels_ask_for_no_more_alignment_than_they_look_at_and_numbers_for_none() -> None:
    # GIVEN inputs aligned to 8 and to 256 bytes, and a number between them, of kernels that Inductor has generated
    specs = [InputSpec((3,), (1,), torch.float32, alignment, 12) for alignment in (8, 256)]
    recording: Any = SimpleNamespace(nodes=[SimpleNamespace(name="triton_poi_fused_0")])
    found = Captured(recording, [], [], [0, 2], [], specs=[specs[0], None, specs[1]])
    # WHEN relaxed
    found.relax()
    # THEN no more than 16 bytes are asked for, and of a number nothing
    assert [spec and spec.alignment for spec in found.specs] == [8, None, 16]
    # AND with one kernel of somebody else's all stays
    recording.nodes.append(SimpleNamespace(name="gemm"))
    found = Captured(recording, [], [], [0], [], specs=[specs[1]])
    found.relax()
    assert found.specs == [specs[1]]


def test_a_tensor_is_anchored_that_is_all_of_its_storage() -> None:
    # GIVEN whole tensors, parts and an empty one WHEN asked THEN what is whole, from its first to its last byte, is
    x = torch.zeros(4, 4)
    whole = [x, x.t(), x.view(2, 8), torch.zeros(0), torch.zeros(5, dtype=torch.int8)]
    assert [is_anchored(y) for y in whole] == [True] * 5
    assert [is_anchored(y) for y in (x[1:], x[:2], x[:0], x[:, :3])] == [False] * 4


def test_the_simulated_allocator_has_the_sizes_of_cuda_s() -> None:
    # GIVEN / WHEN / THEN
    sizes = allocator.ROUND, allocator.SMALL, allocator.SMALL_SEGMENT, allocator.LARGE_FROM, allocator.MIDDLE_SEGMENT
    assert sizes == (512, 1048576, 2097152, 10485760, 20971520)
    assert allocator.LARGE_ROUND == 2097152


@pytest.mark.parametrize("place", [0, 1, 7, 8, 15, 16, 17, 18])
def test_a_digest_tells_of_every_byte(place: int) -> None:
    # GIVEN tensors that differ in one byte, of whole words and behind them WHEN digested THEN they do
    one, other = torch.zeros(19, dtype=torch.uint8), torch.zeros(19, dtype=torch.uint8)
    other[place] = 1
    first, second, third = digests([one, other, one.clone()])
    assert first == third != second


def test_random_is_what_draws_and_not_what_is_given_what_was_drawn() -> None:
    # GIVEN operations that draw, attention's backward, which gets a seed, and one that does neither
    graph = torch.fx.Graph()
    draws = [aten.rand.default, aten.bernoulli.default, aten.native_dropout.default]
    others = [aten._scaled_dot_product_flash_attention_backward.default, aten.sin.default]
    # WHEN asked THEN it is the first
    found = [is_random(graph.call_function(target, ([2],))) for target in (*draws, *others)]
    assert found == [True, True, True, False, False]


def test_work_is_what_a_device_does_beyond_views_and_allocations() -> None:
    # GIVEN operations on the device, on the host, a view, an allocation, and a placeholder
    graph, x = torch.fx.Graph(), torch.ones(2, device="meta")
    here = graph.placeholder("x")
    here.meta["val"] = x
    made = {}
    for target in (aten.sin.default, aten.view.default, aten.empty_like.default, aten.sym_size.int):
        made[target] = graph.call_function(target, (here,))
        apart = torch.ones(2, device="meta")
        made[target].meta["val"] = {aten.sym_size.int: 2, aten.view.default: x}.get(target, apart)
    # WHEN asked THEN only the first does anything
    assert [launches(each, "meta") for each in (here, *made.values())] == [False, True, False, False, False]
    assert not launches(made[aten.sin.default], "cuda")


def test_what_does_not_fit_into_one_block_begins_each_at_its_beginning() -> None:
    # GIVEN three buffers that live at once, two of which fill a block each
    sizes = [MOST_BLOCK, MOST_BLOCK, 1024, 512]
    found = captured(chain(3), sizes, [[0, 2], [0, 2], [0, 2], [2]], 0, [3])
    # WHEN planned
    plan = make_plan(found)
    # THEN each lies in a block, from the block's beginning on
    assert [b.nbytes for b in plan.blocks] == [MOST_BLOCK, MOST_BLOCK, 1024]
    inner = [p for p in plan.placements if isinstance(p.slot, Block)]
    assert sorted((p.slot.number, p.offset) for p in inner if isinstance(p.slot, Block)) == [(0, 0), (1, 0), (2, 0)]


def test_who_addresses_memory_after_it_was_freed_needs_it() -> None:
    # GIVEN memory that was freed before the last node that addresses it, as what is recorded later may
    found = captured(chain(4), [512, 512], [[0, 3], [3]], 0, [1])
    found.allocations[0].died = 2
    # WHEN asked THEN that node needs it as well
    assert set(needs_of(found)[0]) == {0, 1, 3}


def test_a_launcher_is_settled_on_what_it_launches() -> None:
    # GIVEN a launcher with two graphs, the second of which it launches
    first, second = (
        SimpleNamespace(launch=mock.sentinel.one, probation=SimpleNamespace(over=True)),
        SimpleNamespace(launch=mock.sentinel.other, probation=SimpleNamespace(over=True)),
    )
    launcher: Any = SimpleNamespace(
        variants={1: None, 2: first, 3: second},
        current=mock.sentinel.other,
        paused=False,
        code=SimpleNamespace(host_seeds=()),
        options=SimpleNamespace(select="always"),
    )
    # WHEN asked THEN it is that, and none where it launches nothing or shall not
    assert Launcher.settled(launcher) == second
    launcher.options.select = "never"
    assert Launcher.settled(launcher) is None
    launcher.options.select, launcher.current = "always", mock.sentinel.plainly
    assert Launcher.settled(launcher) is None


def test_a_calculator_ends_where_the_first_address_begins() -> None:
    # GIVEN a calculator for one tensor, and addresses behind it, also where one for two tensors would end
    data = calculator((24, 7), 1) + bytes(4) + struct.pack("<16Q", *[1 << 46] * 16)
    # WHEN looked for THEN what it holds ends before the first of them
    assert _offset_calculators(data, (1 << 46).__eq__) == [(4, 404)]


def test_attention_s_scale_is_found_with_one_key_for_all_heads_and_not_beside_odd_flags() -> None:
    # GIVEN attention's structs, of eight heads with a key each, and of eight that share one
    data = bytearray(backward())
    assert _scale(BACKWARD, bytes(data)) in _SCALES
    struct.pack_into("<3i", data, _HEADS, 8, 1, 8)
    # WHEN asked THEN the scale is found, and with none, or with flags that are no flags, it is not the struct we know
    assert _scale(BACKWARD, bytes(data)) in _SCALES
    struct.pack_into("<3i", data, _HEADS, 0, 0, 8)
    assert _scale(BACKWARD, bytes(data)) is None
    struct.pack_into("<3i", data, _HEADS, 8, 8, 1)
    data[_DETERMINISTIC] = 2
    assert _scale(BACKWARD, bytes(data)) is None
