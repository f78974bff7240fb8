from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paramgraph_kit.capture.words import Host, Side, classify
from paramgraph_kit.driver.api import RawAllocation, RawNode
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind, Reason, Word, WordKind

# Two captures written by hand: side 0 lives at BASE[0], side 1 at BASE[1].

BASE = (1 << 44, 3 << 44)
SIZE = 1 << 40


def node(*words: int | bytes, name: str = "kernel", position: int = 0, **how: Any) -> RawNode:
    """A kernel node; integers become 8-byte words."""
    packed = b"".join(w if isinstance(w, bytes) else struct.pack("<Q", w) for w in words)
    return RawNode(NodeKind.KERNEL, name, packed, (), position=position, **how)


def side(which: int, nodes: Sequence[RawNode], allocations: Sequence[RawAllocation]) -> Side:
    start = BASE[which]
    return Side(nodes, allocations, lambda address: start <= address < start + SIZE)


def pair(
    nodes: Sequence[tuple[RawNode, RawNode]], allocations: Sequence[tuple[RawAllocation, RawAllocation]]
) -> tuple[Side, Side]:
    return (
        side(0, [a for a, _ in nodes], [a for a, _ in allocations]),
        side(1, [b for _, b in nodes], [b for _, b in allocations]),
    )


def twins(offset0: int, offset1: int, size: int, born: int = 0, died: int | None = None) -> tuple[Any, Any]:
    """One allocation as both sides made it, at different distances from their bases."""
    return (
        RawAllocation(BASE[0] + offset0, size, born, died),
        RawAllocation(BASE[1] + offset1, size, born, died),
    )


def found(words: Sequence[Word]) -> list[tuple[int, WordKind, int | None, int]]:
    return [(w.offset, w.kind, w.allocation, w.delta) for w in words]


def refusal(*args: Any) -> Reason:
    with pytest.raises(RefusedError) as caught:
        classify(*args)
    assert "\n" not in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("delta", [0, 1, 16, 99])
def test_a_pointer_with_an_offset_names_its_allocation(delta: int) -> None:
    # GIVEN two allocations, and a kernel that takes a pointer into the second one
    memory = [twins(0, 4096, 64), twins(1024, 512, 100)]
    nodes = [(node(BASE[0] + 1024 + delta), node(BASE[1] + 512 + delta))]
    # WHEN the captures are compared
    (words,) = classify(*pair(nodes, memory))
    # THEN the word is a pointer to it with that offset
    assert found(words) == [(0, WordKind.POINTER, 1, delta)]
    assert words[0].evidence == "same allocation and offset in both captures"


def test_a_scalar_keeps_its_value() -> None:
    # GIVEN a kernel with a pointer between two numbers
    nodes = [(node(7, BASE[0], (1 << 64) - 1), node(7, BASE[1], (1 << 64) - 1))]
    # WHEN the captures are compared
    (words,) = classify(*pair(nodes, [twins(0, 0, 8)]))
    # THEN the numbers are scalars with their values
    assert found(words) == [
        (0, WordKind.SCALAR, None, 0),
        (8, WordKind.POINTER, 0, 0),
        (16, WordKind.SCALAR, None, 0),
    ]
    assert [w.value for w in words] == [7, None, (1 << 64) - 1]


def test_an_end_pointer_belongs_to_what_it_ends_though_something_else_begins_there() -> None:
    # GIVEN an allocation that on one side is followed at once by another one
    memory = [twins(0, 0, 512), twins(512, 8192, 512)]
    nodes = [(node(BASE[0] + 512), node(BASE[1] + 512))]
    # WHEN a kernel takes its end THEN both sides together tell whose end it is
    (words,) = classify(*pair(nodes, memory))
    assert found(words) == [(0, WordKind.POINTER, 0, 512)]


@pytest.mark.parametrize(("offset", "owner"), [(1020, 0), (700, 0), (2600, 1), (3996, 1), (6000, 2)])
def test_between_allocations_an_address_is_the_end_of_the_nearest_one_before(offset: int, owner: int) -> None:
    # GIVEN three allocations at the same distances on both sides, with gaps between
    memory = [twins(at, at, 512) for at in (0, 2048, 4096)]
    nodes = [(node(BASE[0] + offset), node(BASE[1] + offset))]
    # WHEN a kernel takes an address in a gap, be it just before the next allocation
    (words,) = classify(*pair(nodes, memory))
    # THEN it is past the end of the last one before it: ends are taken more often than what comes before a beginning
    assert found(words) == [(0, WordKind.POINTER, owner, offset - (0, 2048, 4096)[owner])]


def test_a_pre_decremented_pointer_has_a_negative_offset() -> None:
    # GIVEN a kernel that takes the address of element -1
    memory = [twins(4096, 8192, 256)]
    nodes = [(node(BASE[0] + 4096 - 4), node(BASE[1] + 8192 - 4))]
    # WHEN the captures are compared THEN it belongs to the allocation that follows
    (words,) = classify(*pair(nodes, memory))
    assert found(words) == [(0, WordKind.POINTER, 0, -4)]


def test_an_address_far_from_everything_is_refused() -> None:
    # GIVEN a kernel with an address 3 MiB past the only allocation
    nodes = [(node(1, BASE[0] + (3 << 20), name="lost"), node(1, BASE[1] + 512 + (3 << 20), name="lost"))]
    # WHEN the captures are compared THEN it is refused, with the kernel and the bytes
    reason = refusal(*pair(nodes, [twins(0, 512, 64)]))
    assert reason == Reason(
        "unexplained-word",
        "bytes 8..16 of a kernel's parameters differ between two captures (phantom memory of two different owners)",
        operation="lost",
    )


@pytest.mark.parametrize("number", [0, 7, 0x3FC0_0000, 0xFFFF_FFFF])
def test_a_number_beside_half_a_phantom_address_is_a_number(number: int) -> None:
    # GIVEN a number of four bytes in a struct, and above it what is left of an address that another kernel was given
    nodes = [(node(BASE[0] + number), node(BASE[1] + number))]
    # WHEN the captures are compared THEN it stays, as an address of anything would differ in its lower half
    (words,) = classify(*pair(nodes, [twins(0, 0x5A5A00, 2 << 30)]))
    assert found(words) == [(0, WordKind.SCALAR, None, 0)]
    assert words[0].evidence.startswith("a number of four bytes")
    # AND where that differs, nobody knows
    nodes = [(node(BASE[0] + number), node(BASE[1] + (number ^ 1)))]
    assert refusal(*pair(nodes, [twins(0, 0x5A5A00, 2 << 30)])).code == "unexplained-word"


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), (1, BASE[1]), (BASE[0], 1), (BASE[1], BASE[0]), (BASE[0] + 8, BASE[1] + 9)],
    ids=["two numbers", "number, pointer", "pointer, number", "swapped sides", "two offsets"],
)
def test_a_word_that_differs_otherwise_is_refused_with_kernel_and_bytes(first: int, second: int) -> None:
    # GIVEN a kernel whose third word differs in a way that no rule explains
    nodes = [(node(0, 0, first, name="odd_kernel"), node(0, 0, second, name="odd_kernel"))]
    # WHEN the captures are compared THEN the graph is refused
    reason = refusal(*pair(nodes, [twins(0, 0, 64)]))
    assert reason.code == "unexplained-word"
    assert re.match(r"bytes 16\.\.24 of a kernel's parameters differ between two captures \(.+\)$", reason.message)
    assert reason.operation == "odd_kernel"


def test_a_tail_shorter_than_a_word_holds_no_pointer_and_must_be_equal() -> None:
    # GIVEN packed buffers of 20 bytes: a pointer, a number, and 4 bytes more
    memory = [twins(0, 0, 64)]
    same = [(node(BASE[0], 5, b"abcd"), node(BASE[1], 5, b"abcd"))]
    other = [(node(BASE[0], 5, b"abcd", name="packed"), node(BASE[1], 5, b"abce", name="packed"))]
    # WHEN they are compared THEN an equal tail is no word of its own, and one that differs is refused
    (words,) = classify(*pair(same, memory))
    assert found(words) == [(0, WordKind.POINTER, 0, 0), (8, WordKind.SCALAR, None, 0)]
    reason = refusal(*pair(other, memory))
    assert reason.message.startswith("bytes 16..20 of a kernel's parameters differ")
    assert reason.operation == "packed"


def test_an_equal_address_needs_an_owner() -> None:
    # GIVEN a kernel that reads device memory which did not move between the captures
    device = 0x7F00_0000_1000
    nodes = [(node(3, device, name="reader"), node(3, device, name="reader"))]

    def owner(value: int) -> str | None:
        return "generator state" if value == device else None

    def nobody(value: int) -> str | None:
        if value == device:
            raise RefusedError(Reason("unowned-address", "a kernel reads device memory that is no input"))
        return None

    # WHEN somebody owns it THEN the word stays, and says whose it is
    (words,) = classify(*pair(nodes, []), owner)
    assert words[1] == Word(8, WordKind.SCALAR, value=device, evidence="same address in both captures: generator state")
    assert words[0].evidence == "same bytes in both captures"
    # WHEN nobody does THEN the graph is refused, with the kernel and the bytes
    reason = refusal(*pair(nodes, []), nobody)
    assert reason == Reason(
        "unowned-address",
        "a kernel reads device memory that is no input (bytes 8..16 of its parameters)",
        operation="reader",
    )


@pytest.mark.parametrize("old", [0x7F00_0000_1000, BASE[0] + 64, BASE[1] + 64])
def test_an_old_address_in_bytes_that_no_kernel_reads_is_no_address(old: int) -> None:
    # GIVEN what once was a device address, the same in both captures, between two fields of a kernel's parameters
    def nobody(value: int) -> str | None:
        raise RefusedError(Reason("unowned-address", "device memory that is no input"))

    def captures(layout: tuple[tuple[int, int], ...]) -> tuple[Side, Side]:
        one = node(3, old, name="aten", layout=layout)
        return pair([(one, one)], [twins(0, 0, 512)])

    def owner(value: int) -> str | None:
        return nobody(value) if value == old else None

    # WHEN the layout says that nobody reads it THEN it is kept as it is
    # (also where it reads a part of it, a flag or a number: of an address every byte is read)
    part: tuple[tuple[int, int], ...]
    for part in (((0, 8),), ((0, 8), (8, 4)), ((0, 8), (8, 1))):
        (words,) = classify(*captures(part), owner)
        assert words[1] == Word(8, WordKind.SCALAR, value=old, evidence="bytes that the kernel does not read")
    # AND where the kernel reads all of it, or nobody knows, the graph is refused
    for part in (((0, 8), (8, 8)), ()):
        assert refusal(*captures(part), owner).code in ("unowned-address", "stale-address")


@pytest.mark.parametrize("which", [0, 1])
def test_a_phantom_address_that_both_captures_hold_is_stale_and_refused(which: int) -> None:
    # GIVEN a kernel with one phantom address on both sides, as a cached workspace of an earlier capture has
    stale = BASE[which] + 64
    nodes = [(node(stale, name="gemm"), node(stale, name="gemm"))]
    # WHEN the captures are compared THEN it is no scalar: it points into memory that is not there
    reason = refusal(*pair(nodes, [twins(0, 0, 512)]))
    assert reason == Reason(
        "stale-address",
        "bytes 0..8 of a kernel's parameters hold one phantom address in both captures: memory that an earlier "
        "capture left behind",
        operation="gemm",
    )


def test_two_packed_numbers_that_look_like_a_phantom_address_are_numbers() -> None:
    # GIVEN two 32-bit numbers in one word, whose value lies in side 0's range but in no allocation
    nodes = [(node(BASE[0] + (1 << 30)), node(BASE[0] + (1 << 30)))]
    # WHEN the captures are compared THEN they stay what they are
    (words,) = classify(*pair(nodes, [twins(0, 0, 512)]))
    assert found(words) == [(0, WordKind.SCALAR, None, 0)]


def test_leftover_host_addresses_are_accepted_but_only_on_both_sides() -> None:
    # GIVEN padding that holds the host's stack addresses, different in each capture
    def is_host(value: int) -> bool:
        return value >> 32 == 0x7FFC

    stack = 0x7FFC << 32
    memory = [twins(0, 0, 64)]
    # WHEN both are host addresses THEN no kernel can read through them: the first capture's bytes are kept
    (words,) = classify(*pair([(node(stack + 1), node(stack + 2))], memory), lambda _: None, Host(is_host))
    assert found(words) == [(0, WordKind.SCALAR, None, 0)]
    assert words[0].evidence.startswith("host addresses")
    # WHEN one of them is a pointer or a number THEN it is refused
    for other in (BASE[1], 9):
        reason = refusal(*pair([(node(stack + 1), node(other))], memory), lambda _: None, Host(is_host))
        assert reason.code == "unexplained-word"


def test_numbers_that_cublas_took_from_the_host_are_known_by_the_kernel_and_by_their_place() -> None:
    # GIVEN split-K's sum as cuDNN launches it: a struct, four addresses, two of numbers on the heap, 14 more [H200]
    def is_host(value: int) -> bool:
        return 0x4BA0_0000 <= value < 0x4BB0_0000

    def reduce(base: int, alpha: int, beta: int, name: str = "_ZN8cublasLt19splitKreduce_kernelILi32ELi16E") -> RawNode:
        layout = ((0, 60), *((at, 8) for at in range(64, 224, 8)))
        struct_of_numbers = struct.pack("<f", 1.0) + bytes(60)
        return node(struct_of_numbers, *[base] * 4, alpha, beta, bytes(112), name=name, layout=layout)

    memory, heap = [twins(0, 0, 512)], 0x4BA2_93F0
    nodes = reduce(BASE[0], heap, heap + 0x60), reduce(BASE[1], heap + 64, heap + 0xA0)
    # WHEN the captures are compared THEN they are left over, and the four are addresses
    (words,) = classify(*pair([nodes], memory), lambda _: None, Host(is_host))
    kinds = {w.offset: w.kind for w in words}
    assert [kinds[at] for at in range(64, 112, 8)] == [WordKind.POINTER] * 4 + [WordKind.SCALAR] * 2
    # AND in another kernel, at another place, or where they are none of the host's, they are refused
    other = {"name": "_ZN8cublasLt12other_kernelE"}
    for bad, at in (
        ((reduce(BASE[0], heap, heap, **other), reduce(BASE[1], heap + 64, heap, **other)), 96),
        ((reduce(BASE[0], heap, 7), reduce(BASE[1], heap, 8)), 104),
        ((reduce(heap, heap, heap), reduce(heap + 64, heap, heap)), 64),
    ):
        reason = refusal(*pair([bad], memory), lambda _: None, Host(is_host))
        assert (reason.code, f"bytes {at}..{at + 8} " in reason.message) == ("unexplained-word", True)


def test_where_kernels_read_host_memory_its_addresses_count() -> None:
    # GIVEN a machine whose kernels can read the host's memory, some of which is a constant's
    held = 0x7F00 << 32
    host = Host(lambda value: value >> 32 in (0x7FFC, 0x7F00), read=True, owned=[(held, 64, "constant of the model")])
    stack = 0x7FFC << 32
    memory = [twins(0, 0, 64)]

    def both(first: int, second: int, **how: Any) -> tuple[Side, Side]:
        return pair([(node(first, **how), node(second, **how))], memory)

    # WHEN a kernel is given such addresses, other ones in each capture or one that nobody holds THEN it is refused
    assert refusal(*both(stack + 1, stack + 2), lambda _: None, host).code == "unexplained-word"
    reason = refusal(*both(stack + 8, stack + 8, name="look_up"), lambda _: None, host)
    assert (reason.code, reason.operation) == ("host-address", "look_up")
    assert "bytes 0..8 of its parameters" in reason.message
    # AND what is held may be read, and a number is a number
    (words,) = classify(*both(held + 8, held + 8), lambda _: None, host)
    assert words[0].evidence == "same address in both captures: constant of the model"
    (words,) = classify(*both(7, 7), lambda _: None, host)
    assert words[0].evidence == "same bytes in both captures"
    # AND to kernels that torch gives checked tensors they mean nothing, as everywhere
    for name in ("cudnn_generated_fort_native_sdpa", "triton_poi_fused_add_0", "_ZN2at6native18elementwise_kernelE"):
        for pair_of in ((stack + 1, stack + 2), (stack, stack)):
            (words,) = classify(*both(*pair_of, name=name), lambda _: None, host)
            assert found(words) == [(0, WordKind.SCALAR, None, 0)]


def test_padding_of_aten_s_kernels_is_no_pointer() -> None:
    # GIVEN one of ATen's kernels whose parameters leave a gap of four bytes, which differs between two captures
    aten = "_ZN2at6native18elementwise_kernelE"

    def differing(first: int, second: int, layout: tuple[tuple[int, int], ...]) -> tuple[Side, Side]:
        return pair([(node(first, name=aten, layout=layout), node(second, name=aten, layout=layout))], [])

    # WHEN only the gap differs THEN the bytes stay as they are
    (words,) = classify(*differing(7, 7 | 9 << 32, ((0, 4), (8, 8))))
    assert found(words) == [(0, WordKind.SCALAR, None, 0)]
    assert words[0].evidence == "bytes that the kernel does not read"
    # WHEN a number differs, such as one that the host makes anew for each call, THEN ATen's name does not excuse it
    for layout in (((0, 8), (8, 8)), ()):
        with pytest.raises(RefusedError, match=r"bytes 0\.\.8 of a kernel's parameters differ"):
            classify(*differing(7, 7 | 9 << 32, layout))
    # WHEN it is an address of dead memory in both THEN the same
    stale = [(node(BASE[0] + 9999, name=aten), node(BASE[1] + 9999 + 512, name=aten))]
    assert refusal(*pair(stale, [])).code == "unexplained-word"


def test_a_reused_address_means_what_was_live_when_the_node_was_recorded() -> None:
    # GIVEN a temporary of 64 blocks, freed after node 1, whose first quarter becomes an output from node 2 on
    big, quarter = 64 * 512, 16 * 512
    memory = [twins(0, 1024, big, 0, 2), twins(0, 1024, quarter, 2)]
    inside = 2 * 512
    nodes = [(node(BASE[0] + inside, position=p), node(BASE[1] + 1024 + inside, position=p)) for p in (0, 1, 2, 3)]
    # WHEN the captures are compared
    words = classify(*pair(nodes, memory))
    # THEN the same address is the temporary first and the output later
    assert [w[0].allocation for w in words] == [0, 0, 1, 1]
    assert {w[0].delta for w in words} == {inside}


def test_the_time_of_a_node_is_its_position_not_its_index() -> None:
    # GIVEN lowered nodes that come last in the graph although they were recorded first
    memory = [twins(0, 0, 512, 0, 1), twins(0, 0, 512, 1)]
    nodes = [(node(BASE[0], position=p), node(BASE[1], position=p)) for p in (1, 0)]
    # WHEN the captures are compared THEN the last one means the older allocation
    words = classify(*pair(nodes, memory))
    assert [w[0].allocation for w in words] == [1, 0]


@pytest.mark.parametrize(
    ("first", "second", "message", "operation"),
    [
        ([node(1)], [], "two captures recorded 1 and 0 nodes", ""),
        ([node(1, name="a")], [node(1, name="b")], "two captures recorded different nodes", "a"),
        ([node(1)], [node(1, 2)], "two captures recorded different nodes", "kernel"),
        ([node(1, grid=(2, 1, 1))], [node(1)], "two captures recorded different nodes", "kernel"),
        ([node(1, block=(32, 1, 1))], [node(1)], "two captures recorded different nodes", "kernel"),
        ([node(1, shared_bytes=8)], [node(1)], "two captures recorded different nodes", "kernel"),
        ([node(1, position=1)], [node(1)], "two captures recorded different nodes", "kernel"),
    ],
    ids=["count", "name", "parameters", "grid", "block", "shared", "position"],
)
def test_captures_of_other_nodes_are_refused(
    first: list[RawNode], second: list[RawNode], message: str, operation: str
) -> None:
    # GIVEN two captures of which one recorded something else WHEN they are compared THEN they are refused
    reason = refusal(side(0, first, []), side(1, second, []))
    assert reason == Reason("unstable-capture", message, operation=operation)


def test_captures_with_other_allocations_or_edges_are_refused() -> None:
    # GIVEN the same nodes, but other sizes on one side, or another order
    a, b = node(1), node(1)
    # WHEN they are compared THEN they are refused
    reason = refusal(side(0, [a], [twins(0, 0, 64)[0]]), side(1, [b], [twins(0, 0, 65)[1]]))
    assert reason == Reason("unstable-capture", "two captures made different allocations")
    chain = RawNode(NodeKind.KERNEL, "kernel", a.parameters, (0,))
    reason = refusal(side(0, [a, chain], []), side(1, [b, b], []))
    assert reason.message == "two captures recorded different nodes"


@pytest.mark.parametrize("seed", range(20))
def test_every_word_of_random_captures_is_recovered(seed: int) -> None:
    # GIVEN random allocations with lives, laid out by two simple allocators with reuse and gaps of their own,
    # and nodes with pointers into what lives at their time (its last byte and one past its end included) and numbers
    rng = random.Random(seed)
    count = 60
    lives = []
    for _ in range(40):
        born = rng.randrange(count)
        died = rng.choice([None, rng.randint(born + 1, count)])
        lives.append((rng.choice([1, 8, 511, 512, 513, 4096, 70_000]), born, died))
    lives.sort(key=lambda life: life[1])
    memory = [_laid_out(lives, which, rng) for which in (0, 1)]
    truth: list[list[tuple[int | None, int]]] = []
    nodes: list[tuple[RawNode, RawNode]] = []
    for position in range(count):
        live = [i for i, (_, born, died) in enumerate(lives) if born <= position and (died is None or position < died)]
        chosen: list[tuple[int | None, int]] = []
        for _ in range(rng.randrange(6)):
            if live and rng.random() < 0.7:
                i = rng.choice(live)
                chosen.append((i, rng.choice([0, rng.randrange(lives[i][0]), lives[i][0] - 1])))
            else:
                chosen.append((None, rng.choice([0, 1, -1 % 2**64, rng.getrandbits(40)])))
        truth.append(chosen)
        packed = [[value if i is None else memory[which][i].address + value for i, value in chosen] for which in (0, 1)]
        nodes.append((node(*packed[0], position=position), node(*packed[1], position=position)))
    # WHEN the captures are compared
    words = classify(*pair(nodes, list(zip(*memory, strict=True))))
    # THEN every word is what it was made from
    recovered = [[(w.allocation, w.delta if w.allocation is not None else w.value) for w in row] for row in words]
    assert recovered == truth


def _laid_out(lives: Sequence[tuple[int, int, int | None]], which: int, rng: random.Random) -> list[RawAllocation]:
    """First fit with random gaps: what is dead is reused, what lives at one time never overlaps."""
    placed: list[RawAllocation] = []
    for size, born, died in lives:
        address = BASE[which] + 512 * rng.randrange(8)
        blocking = sorted((a for a in placed if a.died is None or born < a.died), key=lambda a: a.address)
        for a in blocking:
            if address + size > a.address and address < a.address + a.size:
                address = a.address + -(-a.size // 512) * 512
        placed.append(RawAllocation(address, size, born, died))
    return placed


def test_cudnn_descriptors_may_hold_what_was_left_over() -> None:
    # GIVEN a kernel of cuDNN's and one of another library, in whose parameters one word differs and is no address
    def sides(name: str) -> list[Side]:
        return [
            side(which, [node(BASE[which], left, name=name)], [RawAllocation(BASE[which], 512, 0)])
            for which, left in ((0, 7), (1, 1 << 60))
        ]

    # WHEN / THEN
    first, second = sides("_ZN5cudnn24bn_fw_tr_1C11_singlereadIfLi512EEEvv")
    words = classify(first, second)[0]
    assert [word.kind for word in words] == [WordKind.POINTER, WordKind.SCALAR]
    first, second = sides("sm90_xmma_gemm")
    with pytest.raises(RefusedError, match="differ between two captures"):
        classify(first, second)


@pytest.mark.parametrize("behind", [1, 4, 7])
def test_of_cudnn_s_too_an_address_across_words_is_not_kept(behind: int) -> None:
    # GIVEN a kernel of cuDNN's with an address that begins in the middle of a word
    def conv(which: int) -> RawNode:
        name = "_ZN5cudnn17bn_fw_inf_1C11_NHWCE"
        return node(7, b"\1" * behind + struct.pack("<Q", BASE[which] + 64) + bytes(8 - behind), name=name)

    # WHEN compared THEN what is left over in a descriptor is no excuse for it
    reason = refusal(*pair([(conv(0), conv(1))], [twins(0, 0x5A00, 512)]))
    assert reason.code == "unexplained-word"
    assert reason.message.startswith("bytes 8..16" if behind == 1 else "bytes 16..24")


def test_memory_of_cudnn_is_its_own_but_not_the_allocators() -> None:
    # GIVEN an address that nobody is known to own
    def owner(outside: bool) -> Callable[[int], str | None]:
        def ask(value: int) -> str | None:
            refusal = RefusedError(Reason("unowned-address", "nobody's"))
            refusal.address, refusal.outside = value, outside
            raise refusal

        return ask

    one = side(0, [node(1 << 46, name="_ZN5cudnn21bn_bw_1C11_singlereadEv")], [])

    # WHEN / THEN outside of the allocator's segments it is cuDNN's
    assert "cuDNN" in classify(one, one, owner(True))[0][0].evidence
    with pytest.raises(RefusedError, match="nobody's"):
        classify(one, one, owner(False))
