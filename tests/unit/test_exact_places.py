"""Exact values where a number decides what lies where, and texts that become code: one off is another address."""

from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from paramgraph_kit.capture import pair
from paramgraph_kit.capture.elementwise import gap_of_types
from paramgraph_kit.capture.pair import Captured, InputSpec, Kind, Output, _mirror, _Spans
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.phantom_layout import Layout
from paramgraph_kit.driver.sim.graph import pack_scalar
from paramgraph_kit.launch.generate import _differs, _flat, _lazy, _seen
from paramgraph_kit.launch.plan import Order
from paramgraph_kit.launch.probation import Probation
from paramgraph_kit.partition.names import described
from paramgraph_kit.step.capture import _used
from paramgraph_kit.step.steady import _stays
from paramgraph_kit.trace.model import NodeKind, Word, WordKind

MIB = 1 << 20


def test_a_layout_places_from_its_origin_on_in_grains_with_a_gap() -> None:
    # GIVEN both sides' layouts WHEN they place nothing, a byte, and more than a grain THEN where is known exactly
    first, second = Layout(1 << 44, 1 << 40, 0), Layout(3 << 44, 1 << 40, 1)
    origin = (1 << 44) - (1 << 44) % (1 << 24)
    found = [first.place(size, residue) - origin for size, residue in ((0, 0), (1, 16), (3 * MIB, 512), (1, 0))]
    assert found == [4 * MIB, 10 * MIB + 16, 16 * MIB, 24 * MIB]
    shifted = (3 << 44) + 0x5A5A00
    assert [second.place(size) - shifted for size in (0, 1, 3 * MIB, 1)] == [6 * MIB, 14 * MIB, 22 * MIB, 32 * MIB]


@pytest.mark.parametrize(("side", "residues"), [(0, [8, 0, 0]), (1, [24, 256, 256])])
def test_mirrors_keep_an_input_s_alignment_and_lie_otherwise_on_each_side(side: int, residues: list[int]) -> None:
    # GIVEN inputs that are aligned to 8, to 256 and to more, and a number between them
    asked: list[tuple[int, int]] = []
    made: list[tuple[int, int, int]] = []

    def reserve(nbytes: int, residue: int) -> int:
        asked.append((nbytes, residue))
        return 4096 * len(asked)

    def tensor_at(address: int, nbytes: int, size: Any, stride: Any, offset: int, dtype: torch.dtype) -> torch.Tensor:
        made.append((address, nbytes, offset))
        return torch.empty_strided(size, stride, dtype=dtype)

    specs = [InputSpec((3,), (1,), torch.float32, alignment, 12) for alignment in (8, 256, 256)]
    driver: Any = SimpleNamespace(tensor_at=tensor_at)
    # WHEN they are mirrored, the last beginning 5 elements into its storage THEN each lies as its twin does
    mirrors, inputs = _mirror(
        driver, SimpleNamespace(reserve=reserve), [specs[0], None, *specs[1:]], [7], side, [0, 0, 0, 5]
    )
    assert asked == [(12, residue) for residue in residues]
    assert made == [(4096, 12, 0), (8192, 12, 0), (12288 - 20, 32, 5)]
    assert [(a.address, a.size, a.born, a.died) for a in mirrors] == [(4096 * n, 12, 0, None) for n in (1, 2, 3)]
    assert inputs[1] == 7
    assert [isinstance(x, torch.Tensor) for x in inputs] == [True, False, True, True]


def test_an_input_may_lie_where_it_is_aligned_as_it_was_captured() -> None:
    # GIVEN inputs aligned to 8 and to 256, and a number between them
    specs = [InputSpec((3,), (1,), torch.float32, alignment, 12) for alignment in (8, 256)]
    captured = Captured(mock.Mock(), [], [], [0, 2], [], specs=[specs[0], None, specs[1]])
    # WHEN asked of addresses THEN an alignment is its own, any more than the largest is that, and a number lies nowhere
    assert [captured.takes(0, at) for at in (8, 24, 4, 16, 512)] == [True, True, False, False, False]
    assert [captured.takes(2, at) for at in (256, 512, 768, 128)] == [True, True, True, False]
    assert captured.takes(1, 3)


def test_of_spans_that_have_an_address_the_first_given_is_found() -> None:
    # GIVEN spans that overlap, the longest last WHEN asked THEN ends are outside, and the order given decides
    spans = _Spans([(100, 10, "a"), (90, 5, "b"), (104, 10, "c"), (80, 100, "d")])
    found = [spans.first(at) for at in (79, 80, 90, 94, 95, 100, 109, 110, 113, 114, 179, 180)]
    assert "".join(each[2] if each else "-" for each in found) == "-dbbdaaccdd-"


def test_an_address_outside_of_every_segment_is_in_none() -> None:
    # GIVEN two segments with a hole between WHEN asked for addresses around them THEN only inner ones are in one
    segments = pair._Segments([(64, 8), (16, 8)])
    assert [at for at in range(90) if at in segments] == [*range(16, 24), *range(64, 72)]


@pytest.mark.parametrize(
    ("tensors", "size", "gap"),
    [
        (0, 8, range(10, 18)),
        (0, 4, range(0)),
        (1, 8, range(11, 14)),
        (2, 12, range(12, 14)),
        (4, 20, range(0)),
        (5, 28, range(15, 18)),
        (2, 13, range(0)),
        (5, 27, range(0)),
    ],
)
def test_types_of_one_byte_are_filled_up_to_the_ints_behind_them(tensors: int, size: int, gap: range) -> None:
    # GIVEN a loader of so many types WHEN asked THEN exactly the bytes between them and the ints
    assert gap_of_types(tensors, 10, size) == set(gap)


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (True, struct.pack("<q", 1)),
        (-1, b"\xff" * 8),
        ((1 << 63) + 2, struct.pack("<Q", (1 << 63) + 2)),
        (1.5, struct.pack("<d", 1.5)),
        (2 - 3j, struct.pack("<2d", 2, -3)),
    ],
)
def test_a_number_of_the_host_takes_eight_bytes_of_parameters(value: Any, packed: bytes) -> None:
    # GIVEN a number WHEN packed THEN its own bytes, eight of each part
    assert pack_scalar(value) == packed


@pytest.mark.parametrize(
    ("captured", "same", "others"),
    [
        (math.nan, [math.nan], [0.0, 1]),
        (0.0, [0.0], [-0.0, 0, False]),
        (-0.0, [-0.0], [0.0]),
        (1.5, [1.5], [2.5, 1]),
        (1, [1], [True, 1.0, 2]),
        ("sum", ["sum"], ["mean", None]),
    ],
)
def test_a_launch_tells_numbers_apart_by_type_and_bits(captured: Any, same: list[Any], others: list[Any]) -> None:
    # GIVEN a number that a graph was captured with, and the test that is written into its launch
    scope: dict[str, Any] = {}
    test = _differs("x", "c", captured, scope)
    # WHEN another comes THEN it is told, and the same is not
    assert [eval(test, scope, {"x": x}) for x in same] == [False] * len(same)
    assert [eval(test, scope, {"x": x}) for x in others] == [True] * len(others)
    assert (".hex()" in test) == (isinstance(captured, float) and (captured == 0 or captured != captured))


@pytest.mark.parametrize(
    ("bits", "has", "text"),
    [
        ((False, False), (False, False), "v"),
        ((True, False), (False, False), "conj(v)"),
        ((False, True), (False, False), "neg(v)"),
        ((True, True), (False, False), "neg(conj(v))"),
        ((True, True), (True, False), "neg(v)"),
        ((False, False), (True, True), "neg(conj(v))"),
    ],
)
def test_lazy_bits_are_turned_only_where_they_differ(
    bits: tuple[bool, bool], has: tuple[bool, bool], text: str
) -> None:
    # GIVEN the bits of an output and of what it is made from WHEN written THEN those that differ are turned
    assert _lazy("v", bits, has) == text


def test_what_covers_an_allocation_counts_bytes() -> None:
    # GIVEN outputs of one allocation WHEN it is covered THEN in elements of their type
    output = Output(Kind.FRESH, 0, 8, (3, 2), (4, 1), torch.float32)
    assert output.nbytes == 40
    assert Output(Kind.FRESH, 0, 0, (3, 0), (1, 1), torch.float32).nbytes == 0
    seen = _seen(output, (5,), (1,), 3)
    assert (seen.size, seen.stride, seen.offset) == ((5,), (1,), 20)
    whole = _flat([output], 48)
    assert (whole.size, whole.stride, whole.dtype, whole.offset) == ((12,), (1,), torch.float32, 0)


def test_an_order_knows_what_precedes_across_branches() -> None:
    # GIVEN a graph that forks after its first node and joins in its last, and allocations used in its branches
    nodes = [RawNode(NodeKind.KERNEL, "k", b"", deps) for deps in ((), (0,), (0,), (2,), (1, 3))]
    uses = {0: [0], 1: [1], 2: [2, 3], 3: [4], 4: [0, 1]}
    order = Order(nodes, uses)
    # WHEN asked for each pair THEN only what the edges order precedes
    found = {(a, b) for a in uses for b in uses if order.precedes(a, b)}
    assert found == {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (4, 3)}


def test_copies_to_compare_with_lie_as_the_originals_do() -> None:
    # GIVEN tensors of which two overlap, one strided, one empty, one reaching over nobody else's memory, and a number
    base = torch.arange(300.0)
    given = [base[3:7], base[5:12], base[200:260].view(6, 10)[:, ::2].t(), torch.empty(0), 2.5]
    driver: Any = SimpleNamespace(address_of=torch.Tensor.data_ptr, device=torch.device("cpu"))
    call: Any = None
    copies = Probation(driver, call, call, call, call, verify="first", measure=False)._copies(given)
    assert copies is not None
    # WHEN copied THEN values, strides and alignments are theirs
    for mine, theirs in zip(copies[:3], given[:3], strict=True):
        assert isinstance(theirs, torch.Tensor)
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()
        assert mine.storage_offset() * 4 % 512 == theirs.data_ptr() % 512
    assert copies[3:] == given[3:]
    # AND what overlaps does in the copies, where they were apart they are, and the originals are left alone
    assert copies[1].data_ptr() - copies[0].data_ptr() == 8
    assert copies[2].untyped_storage()._cdata != copies[0].untyped_storage()._cdata
    copies[0].fill_(-1)
    assert copies[1].tolist() == [-1, -1, 7, 8, 9, 10, 11]
    assert torch.equal(base, torch.arange(300.0))


def test_of_the_state_those_tensors_are_used_into_which_a_word_leads() -> None:
    # GIVEN state of tensors, two of one storage, one empty, and words around their ends
    places = {"a": (1000, 40), "b": (1040, 8), "c": (1000, 40), "d": (1100, 4)}
    state: Any = {key: (key, torch.empty(int(key != "d"))) for key in places}
    tensors = {id(tensor): places[key] for key, (_, tensor) in state.items()}
    driver: Any = SimpleNamespace(storage_of=lambda tensor: tensors[id(tensor)])

    def used(*values: int, kind: WordKind = WordKind.SCALAR) -> list[str]:
        words = [[Word(8 * n, kind, value=value) for n, value in enumerate(values)]]
        found = {id(tensor) for tensor in _used(words, driver, state)}
        return [key for key, (_, tensor) in state.items() if id(tensor) in found]

    # WHEN asked THEN first bytes are inside, ends are not, and all that share a storage are found
    found = [used(at) for at in (999, 1000, 1039, 1040, 1047, 1048, 1100)]
    assert found == [[], ["a", "c"], ["a", "c"], ["b"], ["b"], [], []]
    assert used(1000, 1040) == ["a", "b", "c"]
    assert used(1000, kind=WordKind.POINTER) == []


@pytest.mark.parametrize(
    ("kind", "reads", "exits", "stays"),
    [
        ("gradient", [0], [1], True),
        ("gradient", [0], [0], False),  # another output
        ("gradient", [0], [None], False),
        ("gradient", [0], [1, 1], False),
        ("gradient", [], [1], False),
        ("attribute", [0], [1], False),
    ],
)
def test_a_gradient_stays_where_it_is_given_back_as_it_came(
    kind: str, reads: list[int], exits: list[int | None], stays: bool
) -> None:
    # GIVEN a cell, and outputs of which the second is argument 3 WHEN asked THEN only that gradient stays
    outputs = [Output(Kind.FRESH, 3), Output(Kind.ARGUMENT, 3)]
    captured: Any = SimpleNamespace(outputs=outputs)
    cell: Any = SimpleNamespace(holder=SimpleNamespace(kind=kind), reads=reads, exits=exits)
    assert _stays(captured, cell, 3) is stays
    assert not _stays(captured, cell, 2)


def test_values_of_a_backward_are_called_after_what_they_are_of() -> None:
    # GIVEN what AOTAutograd says of values WHEN described THEN in the user's words, and "" of what nobody names
    def told(name: str, **fields: Any) -> Any:
        return type(name, (), fields)()

    plain = told("PlainAOTInput", idx=1)
    assert described(plain, ["x", "y"]) == "y"
    assert described(plain, ["x"]) == ""
    assert described(told("PlainAOTOutput", idx=2), []) == "output 2"
    assert described(told("GradAOTOutput", grad_of=plain), ["x", "y"]) == "gradient of y"
    assert described(told("TangentAOTInput", output=told("Unknown")), []) == "a gradient"
    assert described(told("InputMutationAOTOutput", mutated_input=plain), ["x", "y"]) == "new y"
    assert described(told("InputMutationAOTOutput", mutated_input=plain), ["x"]) == ""
    assert described(told("Unknown"), ["x"]) == ""
