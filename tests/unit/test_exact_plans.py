"""Exact values where a plan, a key or an order would be one off, and nothing else would show it."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from paramgraph_kit.capture import words
from paramgraph_kit.capture.flash import _DETERMINISTIC, _HEADS, _SCALES, _scale
from paramgraph_kit.capture.pair import Captured, InputSpec, Kind, Output, is_anchored
from paramgraph_kit.capture.unused import _offset_calculators
from paramgraph_kit.driver.api import Binding, RawNode
from paramgraph_kit.driver.sim import allocator
from paramgraph_kit.driver.tensors import digests
from paramgraph_kit.launch import plan as plans
from paramgraph_kit.launch.generate import Form, launch_function
from paramgraph_kit.launch.launcher import Launcher, Options
from paramgraph_kit.launch.lent import LEAST
from paramgraph_kit.launch.plan import MOST_BLOCK, Block, Order, Workspace, _among, make_plan, needs_of
from paramgraph_kit.launch.stages import Lives, cut
from paramgraph_kit.partition.nodes import from_storage, is_random, launches
from paramgraph_kit.step.capture import _spec
from paramgraph_kit.trace.model import NodeKind, Word, WordKind
from tests.integration.launch_bench import DRIVER, launcher_of, moved, variants
from tests.unit.test_capture_flash import BACKWARD, FORWARD, backward, forward
from tests.unit.test_capture_unused import calculator
from tests.unit.test_launch_plan import captured, chain
from tests.unit.test_sim_allocator import Device

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
    # AND so does the very first that came when it was gone
    found = captured(chain(3), [512], [[0, 2]], 0, [])
    found.allocations[0] = replace(found.allocations[0], died=2)
    assert list(needs_of(found)[0]) == [0, 1, 2]


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


def test_no_more_is_kept_than_all() -> None:
    # GIVEN attention's struct, where a dropout lets a little more than everything through WHEN asked THEN it is none
    assert _scale(FORWARD, forward(dropout=0.0)) in _SCALES
    assert _scale(FORWARD, forward(dropout=-0.002)) is None


@pytest.mark.parametrize(("parameter", "left"), [(4, False), (5, True), (6, True), (7, False)])
def test_numbers_of_the_host_are_those_parameters_alone(parameter: int, left: bool) -> None:
    # GIVEN a split-K reduction of cuBLAS's with nine parameters of a word each
    node = RawNode(
        NodeKind.KERNEL,
        "_ZN8cublasLt19splitKreduce_kernelILi32E",
        bytes(72),
        (),
        layout=tuple((8 * n, 8) for n in range(9)),
    )
    # WHEN asked whether a host address may be left over in one THEN it may in the two that are the numbers' addresses
    assert words._may_be_left_over(node, 8 * parameter) is left


def test_64_tensors_are_made_before_a_launch_and_not_65() -> None:
    # GIVEN / WHEN / THEN
    for count, stages in ((64, 1), (65, 2)):
        assert len(cut(Lives(count, dying=[], made=[(1, n) for n in range(count)], inner=[]), 8)) == stages


def test_only_what_writes_an_input_from_its_storage_on_looks_from_there() -> None:
    # GIVEN an operation of somebody's that writes a view by its offset: of an input, and of what is made inside
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(4, device="meta")
    inside = graph.call_function(aten.sin.default, (x,))
    inside.meta["val"] = torch.ones(4, device="meta")
    operation = torch.ops.higher_order.auto_functionalized_v2
    named = {"_x_storage_offset": 2}
    ours = graph.call_function(operation, (aten.add_.Tensor,), {"_all_bases": [inside], **named})
    inputs = graph.call_function(operation, (aten.add_.Tensor,), {"_all_bases": [x], **named})
    # WHEN asked THEN it is the first alone that nobody can place
    assert ours.all_input_nodes == [inside]
    assert from_storage(list(graph.nodes)) == [inputs]


@pytest.mark.parametrize(
    ("size", "allocated", "nbytes"), [(128, 512, 512), (128, 1024, 1024), (300, 1536, 1200), (8, 32, 32)]
)
def test_a_gradient_has_all_of_an_allocation_that_is_more_than_the_allocator_rounds_up_to(
    size: int, allocated: int, nbytes: int
) -> None:
    # GIVEN a gradient of floats on an allocation of its own WHEN described
    output = SimpleNamespace(dtype=torch.float32, nbytes=4 * size, source=0, size=(size,), stride=(1,))
    found: Any = SimpleNamespace(outputs=[output], allocations=[SimpleNamespace(size=allocated)])
    # THEN what a launch may write is its own bytes, rounded up, or the whole where that is larger
    assert _spec(found, 0).nbytes == nbytes


def test_a_row_of_nodes_each_behind_the_last_is_a_chain() -> None:
    # GIVEN nodes in a row, and two that nothing orders WHEN asked THEN only the first are a chain
    def order(*deps: tuple[int, ...]) -> Order:
        return Order([RawNode(NodeKind.KERNEL, "k", b"", each) for each in deps], {})

    assert [order((), (0,), (1,)).is_chain, order((), ()).is_chain, order((), (0,), (0,)).is_chain] == [
        True,
        False,
        False,
    ]


def test_memory_without_a_stream_is_the_default_stream_s() -> None:
    # GIVEN a block that was freed on the default stream WHEN memory is asked for without one THEN it is that block
    target = allocator.CachingAllocator(Device())
    block = target.alloc(512, stream=0)
    assert block is not None
    target.free(block)
    assert target.alloc(512) == block


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
def test_a_shelf_has_its_address_beside_inputs_that_are_aligned_in_other_ways() -> None:
    # GIVEN a launch of an aligned input, one aligned to 4 bytes, and one that lies on a shelf
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * y - z,)

    launcher = launcher_of(function)
    launcher([moved(64), moved(65)[1:], moved(64)])
    (variant,) = variants(launcher)

    def never(_: list[Any]) -> Any:
        raise AssertionError("a call that it was captured for")

    captured, code = variant.captured, launcher.code
    form = Form(shelved={2: 512})
    launch = launch_function(
        DRIVER, captured, variant.plan, variant.executables, variant.state, never, never, code, form
    )
    for n in range(3):
        # WHEN launched THEN it reads what lies there
        x, y, shelf = moved(64, seed=n), moved(65, seed=n + 7)[1:], moved(256, seed=n + 9)
        (found,) = launch([x, y, shelf.view(torch.uint8)])
        assert torch.equal(found, function(x, y, shelf[128:192])[0])


def test_few_of_many_buffers_are_found_from_the_first_on() -> None:
    # GIVEN many buffers, some placed, the first of them at the beginning WHEN few are chosen THEN it is these, in order
    sizes, offsets = [8] * 40, {n: 8 * n for n in range(30)}
    placed = sorted((offsets[n], offsets[n] + 8, n) for n in range(30))
    chosen = 1 << 0 | 1 << 7 | 1 << 35
    assert _among(placed, chosen, offsets, sizes) == [(0, 8, 0), (56, 64, 7)]
    assert _among(placed, 1 << 6 | 1 << 7, offsets, sizes) == [(48, 56, 6), (56, 64, 7)]
    assert _among(placed, (1 << 12) - 1, offsets, sizes) == [(8 * n, 8 * n + 8, n) for n in range(12)]


@pytest.mark.parametrize(("count", "chosen", "through"), [(7, 1, True), (8, 1, False), (16, 2, False), (15, 2, True)])
def test_one_in_eight_is_looked_up_and_more_are_searched_for(count: int, chosen: int, through: bool) -> None:
    # GIVEN placed buffers that tell whether somebody goes through them WHEN some are chosen THEN few do not need that
    gone: list[bool] = []

    class Placed(list[tuple[int, int, int]]):
        def __iter__(self) -> Any:
            gone.append(True)
            return super().__iter__()

    offsets = {n: 8 * n for n in range(count)}
    placed = Placed((8 * n, 8 * n + 8, n) for n in range(count))
    assert _among(placed, (1 << chosen) - 1, offsets, [8] * count) == [(8 * n, 8 * n + 8, n) for n in range(chosen)]
    assert bool(gone) is through


def test_a_gap_without_room_is_not_asked_for_its_first_place(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN buffers of which three lie in a row, and one that meets all of them and fits behind
    asked = mock.Mock(side_effect=plans._within_one)
    monkeypatch.setattr(plans, "_within_one", asked)
    # WHEN packed THEN one place is asked for each, and no gap between
    assert plans.pack([2048, 1536, 1024, 512], [0b1110, 0b1101, 0b1011, 0b0111])[0] == [0, 2048, 3584, 4608]
    assert [each.args[1] for each in asked.call_args_list] == [2048, 1536, 1024, 512]


def test_the_most_that_blocks_take_is_that_of_the_stage_with_most() -> None:
    # GIVEN blocks for the first stage, for two, and for the second WHEN asked THEN those of one stage count together
    blocks = tuple(Workspace(*each) for each in ((8, 0, 0), (16, 0, 1), (4, 1, 1), (9, 2, 2)))
    stage: Any = None
    assert plans.Plan((), (), 0, blocks, (stage,) * 3).workspace_bytes == 24
    assert plans.Plan((), (), 0, blocks[2:], (stage,) * 3).workspace_bytes == 9


def test_what_no_node_addresses_is_there_from_the_first_stage_to_none() -> None:
    # GIVEN two activations that die as two gradients of their size are made, and beside them an input and an output
    # that no node addresses, and an input that is returned
    size = 99 << 20
    uses = [[0, 1], [0, 3], [], [1], [1], [3], []]
    found = captured(chain(4), [size, size, 512, 512, size, size, 512], uses, 4, [4, 5, 6])
    found.outputs.append(Output(Kind.INPUT, 3, 0, (128,), (1,), torch.float32))
    # WHEN planned in stages, with all inputs dying
    plan = make_plan(found, dying=[0, 1, 2, 3], most_stages=8)
    # THEN the first makes such an output, and gives back such an input, but none that is returned
    assert [stage.nodes for stage in plan.stages] == [range(3), range(3, 4)]
    assert [stage.fresh for stage in plan.stages] == [(4, 6), (5,)]
    assert [stage.spent for stage in plan.stages] == [(0, 2), ()]


def test_an_input_that_is_returned_or_not_addressed_frees_nothing_as_it_dies() -> None:
    # GIVEN two large inputs, read by the first node, and two outputs of their size WHEN they die, or are kept
    size = 99 << 20
    for returned, stages in ((False, 2), (True, 1)):
        found = captured(chain(2), [size, size], [[0], [1]], 1, [1])
        if returned:
            found.outputs.append(Output(Kind.INPUT, 0, 0, (1,), (1,), torch.float32))
        # THEN cutting gains something in the one case only
        assert len(make_plan(found, dying=[0], most_stages=8).stages) == stages


def test_an_output_that_no_node_addresses_is_made_before_the_first() -> None:
    # GIVEN an input that dies with the first node, and an output of its size that no node addresses, or the second does
    size = 99 << 20
    for users, stages in (([], 1), ([1], 2)):
        found = captured(chain(2), [size, size], [[0], users], 1, [1])
        # WHEN planned THEN cutting gains something where the output can come later
        assert len(make_plan(found, dying=[0], most_stages=8).stages) == stages


def test_words_are_bound_that_are_pointers_to_an_allocation() -> None:
    # GIVEN a node with a pointer, a number that an allocation stands beside, and a pointer to none WHEN bound
    words = (Word(0, WordKind.POINTER, 0, 8), Word(8, WordKind.SCALAR, 0), Word(16, WordKind.POINTER, None))
    found: Any = SimpleNamespace(words=[(), words])
    slots: list[plans.Slot] = [Block(0), plans.Input(0)]
    # THEN the first has a place in the table, behind its offset, and is the only one
    table, bindings = plans._bind(found, range(1, 2), {0: (1, 512)}, slots)
    assert table == (plans.Input(0),)
    assert bindings == (Binding(1, 0, 0, 520),)


def test_only_inputs_have_what_their_address_may_be_written_to() -> None:
    # GIVEN a node that writes addresses, of an input and two buffers, and one before it that writes none
    found = captured(chain(3), [512] * 3, [[0, 1], [0, 1], [1, 2]], 1, [])
    nodes = found.recording.nodes
    found.recording.nodes[:] = [replace(node, writes_addresses=n == 1) for n, node in enumerate(nodes)]
    # WHEN asked THEN the input has the buffers beside it, from that node on
    assert plans._beside(found, 1) == {0: {1: 1, 2: 1}}
    assert [list(needs_of(found)[i]) for i in range(3)] == [[0, 1, 2], [0, 1], [1, 2]]


def test_sizes_are_rounded_up_to_512_and_nothing_to_one_of_these() -> None:
    # GIVEN / WHEN / THEN
    assert [plans._rounded(n) for n in (0, 1, 511, 512, 513, 1024, 1025)] == [512, 512, 512, 512, 1024, 1024, 1536]


def test_a_buffer_begins_where_it_lies_in_one_block_or_at_the_next() -> None:
    # GIVEN blocks of 1024 bytes WHEN asked from where on a buffer may lie THEN to the byte
    cases = [(0, 4096, 0), (512, 512, 512), (512, 513, 1024), (1, 1023, 1), (1, 1024, 1024), (1025, 1024, 2048)]
    assert [plans._within_one(at, size, 1024) for at, size, _ in cases] == [place for _, _, place in cases]


def test_eight_stages_at_most_unless_somebody_says_otherwise() -> None:
    # GIVEN / WHEN / THEN
    assert Options().stages == 8


def test_an_input_that_no_node_addresses_lends_nothing() -> None:
    # GIVEN two inputs that are written before they are read, of which no node addresses the second, and a buffer inside
    size = 4 * LEAST
    found = captured(chain(3), [size] * 3, [[2], [], [0, 1]], 2, [])
    found.specs = [InputSpec((size,), (1,), torch.uint8, 512, size)] * 2
    # WHEN planned, with the first, with both, and with the second THEN it is the first that lends, if it may
    for rewritten, lends in (([0], True), ([0, 1], True), ([1], False)):
        assert isinstance(make_plan(found, rewritten=rewritten).placements[2].slot, Block) is not lends
