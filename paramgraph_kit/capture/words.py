"""Words: which aligned 8-byte pieces of the parameters are pointers, and into which allocation.

Two captures on disjoint phantom ranges are compared word by word. A word is a pointer if it lies in each side's
own range and means the same allocation and offset in both. A word that is equal in both is a scalar, or an address
that is the same at every launch. Any other difference is unexplained, and the graph is refused.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from paramgraph_kit.capture.elementwise import closes_closure, differ_in_padding, is_host_half
from paramgraph_kit.capture.unused import fields, unused_bytes
from paramgraph_kit.driver.api import RawAllocation, RawNode
from paramgraph_kit.driver.kernel_names import ATEN, CUDNN, scalars_of_host, takes_device_memory_only
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason, Word, WordKind

SMALL = 32  # bytes: of ATen's function objects; what has room for dimensions or lists of tensors is larger
_FILLED = ("triton_", "pgk_")  # kernels whose parameters are numbers and addresses, one by one
REACH = 2 << 20  # how far an end pointer or a pre-decremented one may lie outside its allocation


@dataclass(slots=True)
class Side:
    """One capture as ``classify`` reads it: nodes, the memory they may address, and the range it came from."""

    nodes: Sequence[RawNode]
    allocations: Sequence[RawAllocation]
    contains: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Host:
    """The host's memory: its addresses among parameters are left over, or addresses that count."""

    holds: Callable[[int], bool]  # whether a value is an address of it
    read: bool = False  # whether kernels can read it
    owned: Sequence[tuple[int, int, str]] = ()  # (address, bytes, owner) of what stays where it is

    def left_over(self, node: RawNode, value: int) -> bool:
        """Whether a value is bytes of the host's stack or heap that this node's kernel cannot read through."""
        return not self._counts(node) and self.holds(value)

    def owner(self, node: RawNode, offset: int, value: int) -> str | None:
        """Who owns the host memory that a kernel may read through a value; None if the value is no such address."""
        if not self._counts(node) or not self.holds(value):
            return None
        for address, nbytes, owner in self.owned:
            if address <= value < address + nbytes:
                return owner
        text = (
            "kernels of this machine can read host memory, and one is given an address of it that is no constant of "
            f"the model (bytes {offset}..{offset + 8} of its parameters)"
        )
        raise RefusedError(Reason("host-address", text, operation=node.name))

    def _counts(self, node: RawNode) -> bool:
        return self.read and not takes_device_memory_only(node.name)


class _Index:
    """Allocations by address; answers which were live at a position and cover (or neighbour) an address.

    Those that are live at one position lie apart (``merge_ambiguous`` has joined the others), and positions are asked
    about in rising order: what is live is kept sorted while they rise.
    """

    def __init__(self, allocations: Sequence[RawAllocation]) -> None:
        self.allocations = allocations
        self._ends = [a.address + max(a.size, 1) for a in allocations]
        self._births = sorted(range(len(allocations)), key=lambda i: allocations[i].born)
        ordered = sorted(range(len(allocations)), key=lambda i: allocations[i].address)
        self._starts = [allocations[i].address for i in ordered]
        self._furthest = list(itertools.accumulate((self._ends[i] for i in ordered), max))  # end of all up to here
        self._rewind()

    def _rewind(self) -> None:
        self._position, self._born = -math.inf, 0
        self._live_starts: list[tuple[int, int]] = []  # (address, allocation), sorted
        self._deaths: list[tuple[int, int]] = []  # a heap of (position, allocation)

    def _move(self, position: int) -> None:
        """Bring what is live up to ``position``."""
        if position < self._position:
            self._rewind()
        self._position = position
        while self._born < len(self._births):
            a = self.allocations[i := self._births[self._born]]
            if a.born > position:
                break
            self._born += 1
            bisect.insort(self._live_starts, (a.address, i))
            if a.died is not None:
                heapq.heappush(self._deaths, (a.died, i))
        while self._deaths and self._deaths[0][0] <= position:
            _, i = heapq.heappop(self._deaths)
            del self._live_starts[bisect.bisect_left(self._live_starts, (self.allocations[i].address, i))]

    def covering(self, address: int, position: int) -> list[int]:
        """Allocations live at ``position`` whose bytes include ``address``."""
        return self._live(address, position, 0)

    def neighbours(self, address: int, position: int) -> list[int]:
        """Live allocations that ``address`` misses by less than ``REACH`` bytes on either side."""
        return self._live(address, position, REACH - 1)

    def ever(self, address: int) -> bool:
        """Whether any allocation, live or not, includes ``address``."""
        k = bisect.bisect_right(self._starts, address) - 1
        return k >= 0 and address < self._furthest[k]

    def _live(self, address: int, position: int, reach: int) -> list[int]:
        if position != self._position:
            self._move(position)
        found, live, ends = [], self._live_starts, self._ends
        k = bisect.bisect_right(live, (address + reach, len(ends))) - 1
        address -= reach
        while k >= 0 and address < ends[live[k][1]]:
            found.append(live[k][1])
            k -= 1
        return found


def classify(
    first: Side,
    second: Side,
    static_owner: Callable[[int], str | None] = lambda _: None,
    host: Host = Host(lambda _: False),
) -> list[tuple[Word, ...]]:
    """All words of every node of ``first``, by comparison with ``second``; see ``notable_words``."""
    found = notable_words(first, second, static_owner, host)
    return [complete(node, words) for node, words in zip(first.nodes, found, strict=True)]


def complete(node: RawNode, notable: Sequence[Word]) -> tuple[Word, ...]:
    """All words of a node, from its notable ones: the others are the same in both captures and no addresses."""
    words = {word.offset: word for word in notable}
    return tuple(
        words.get(8 * place) or Word(8 * place, WordKind.SCALAR, value=value, evidence=_SAME)
        for place, value in enumerate(_values(node))
    )


def notable_words(
    first: Side,
    second: Side,
    static_owner: Callable[[int], str | None] = lambda _: None,
    host: Host = Host(lambda _: False),
) -> list[tuple[Word, ...]]:
    """The words of every node of ``first`` that are more than a number, by comparison with ``second``.

    A node of a library has hundreds of words, of which a few are addresses or differ.

    ``static_owner(value)`` names live device memory that an equal word points into and that stays where it is, None
    if the value is no such address; it raises RefusedError for device memory that nobody owns up to.
    ``host`` tells bytes left over from the host's stack or heap, through which no kernel can read.

    Raises RefusedError where the two captures differ in shape or in a way that nothing explains.
    """
    check_same_shape(first, second)
    indices = _Index(first.allocations), _Index(second.allocations)
    result = []
    for a, b in zip(first.nodes, second.nodes, strict=True):
        try:
            result.append(_words_of((a, b), (first, second), indices, static_owner, host))
        except RefusedError as refusal:
            refusal.position = a.position
            raise
    return result


def _words_of(
    nodes: tuple[RawNode, RawNode],
    sides: tuple[Side, Side],
    indices: tuple[_Index, _Index],
    static_owner: Callable[[int], str | None],
    host: Host,
) -> tuple[Word, ...]:
    (a, b), (first, second) = nodes, sides
    words = []
    unused = _Unused((a, b), (first.contains, second.contains))
    pairs = enumerate(zip(_values(a), _values(b), strict=True))
    for place, value_x, value_y in [(n, x, y) for n, (x, y) in pairs if x != y or _FIRST_ADDRESS <= x < _END]:
        offset = 8 * place
        in_x, in_y = first.contains(value_x), second.contains(value_y)
        if in_x and in_y and _is_one_value(a, offset):
            target = _resolve(indices, (value_x, value_y), (a.position, b.position))
            if target is not None:
                words.append(
                    Word(offset, WordKind.POINTER, *target, evidence="same allocation and offset in both captures")
                )
                continue
            if unused.differs_only_there(offset, 8):
                words.append(Word(offset, WordKind.SCALAR, value=value_x, evidence=_UNUSED))
            elif not (value_x ^ value_y) & _LOWER_HALF:  # in which no address is the same on both sides
                words.append(Word(offset, WordKind.SCALAR, value=value_x, evidence=_BESIDE))
            else:
                _refuse(a, offset, 8, "phantom memory of two different owners")
        elif value_x == value_y:
            try:
                if (in_x and indices[0].ever(value_x)) or (in_y and indices[1].ever(value_y)):
                    _refuse_stale(a, offset)
                owner = _owner(a, offset, value_x, static_owner) or host.owner(a, offset, value_x)
                evidence = f"same address in both captures: {owner}" if owner else _SAME
            except RefusedError:  # what lay on the stack may be an old address, twice the same
                if not unused.touches(offset, 8):
                    raise
                evidence = _UNUSED
            words.append(Word(offset, WordKind.SCALAR, value=value_x, evidence=evidence))
        elif (
            not (in_x or in_y)
            and _may_be_left_over(a, offset)
            and not unused.touches(offset, 8)
            and host.left_over(a, value_x)
            and host.left_over(b, value_y)
        ):
            words.append(Word(offset, WordKind.SCALAR, value=value_x, evidence=_LEFTOVER))
        elif _differ_beside_a_number(a, offset, (value_x, value_y), (in_x, in_y)):
            words.append(Word(offset, WordKind.SCALAR, value=value_x, evidence=_BESIDE))
        elif (
            unused.differs_only_there(offset, 8)
            or differ_in_padding(a, offset, value_x, value_y)
            or (a.name.startswith(CUDNN) and not _meets_address((a, b), (first.contains, second.contains), offset))
        ):
            # cuDNN's descriptors have room for more dimensions than are filled in, and an address would be
            # phantom in both.
            words.append(Word(offset, WordKind.SCALAR, value=value_x, evidence=_UNUSED))
        else:
            _refuse(a, offset, 8, "no rule explains it")
    tail = len(a.parameters) % 8
    if not unused.differs_only_there(len(a.parameters) - tail, tail):
        _refuse(a, len(a.parameters) - tail, tail, "no rule explains it")
    return tuple(words)


def _differ_beside_a_number(node: RawNode, offset: int, values: tuple[int, int], inside: tuple[bool, bool]) -> bool:
    """Whether two words in a library's struct are one number of four bytes, beside half an address or nothing.

    So are gaps behind an odd number of numbers (CUTLASS's strides in cuDNN's convolutions [H100]). No phantom address
    has the same lower half in both captures; a null pointer has none, so neither may the number.
    """
    if node.name.startswith((ATEN, *_FILLED)) or not _is_one_value(node, offset, 8):
        return False
    if (values[0] ^ values[1]) & _LOWER_HALF or not values[0] & _LOWER_HALF:
        return False
    halves = [value >> 32 for value in values]
    return all(held or not half or is_host_half(half) for half, held in zip(halves, inside, strict=True))


def _meets_address(nodes: tuple[RawNode, RawNode], contains: tuple[Callable[[int], bool], ...], offset: int) -> bool:
    """Whether a word has bytes in common with an address that lies across words, in both captures."""
    for start in range(max(offset - 7, 0), min(offset + 8, len(nodes[0].parameters) - 7)):
        values = (int.from_bytes(node.parameters[start : start + 8], "little") for node in nodes)
        if all(holds(value) for holds, value in zip(contains, values, strict=True)):
            return True
    return False


def _may_be_left_over(node: RawNode, offset: int) -> bool:
    """Whether a whole address may be left over in a word of this kernel.

    Not where parameters end within it: half an address beside a number makes an address of the number (2.5 in the lower
    half was one, and frozen [H100]). Nor in a parameter of its own, which may be such a number and its padding, nor in
    a small function object, but for its end.
    """
    small = SMALL if node.name.startswith((ATEN, *_FILLED)) else 8
    if any((offset, 8) in node.layout[n : n + 1] for n in scalars_of_host(node.name)):
        return True
    return _is_one_value(node, offset, small) or closes_closure(node, offset)


def _is_one_value(node: RawNode, offset: int, small: float = -math.inf) -> bool:
    """Whether a word lies inside one parameter (of more bytes than ``small``), as far as is known where these end.

    A flag below the rest of an older address is none: rewritten, it would be the lowest byte of another address.
    """
    within = ((start, size) for start, size in fields(node) if start <= offset and offset + 8 <= start + size)
    return not node.layout or any(size > small for _, size in within)


def _values(node: RawNode) -> tuple[int, ...]:
    return struct.unpack_from(f"<{len(node.parameters) // 8}Q", node.parameters)


# Numbers outside are no addresses: the first pages are never mapped, and addresses of a process have at most 57 bits.
_FIRST_ADDRESS, _END = 1 << 16, 1 << 57
_SAME = "same bytes in both captures"
_LEFTOVER = "host addresses: bytes left over on the stack, which no kernel can read through"


_UNUSED = "bytes that the kernel does not read"
_BESIDE = "a number of four bytes, and half an address that is left over beside it"
_LOWER_HALF = 0xFFFF_FFFF


class _Unused:
    """The bytes of two nodes' parameters that mean nothing in either, found when they are asked for."""

    def __init__(self, nodes: tuple[RawNode, RawNode], contains: tuple[Callable[[int], bool], ...]) -> None:
        self._nodes, self._contains = nodes, contains
        self._bytes: set[int] | None = None

    def differs_only_there(self, offset: int, count: int) -> bool:
        """Whether the two nodes' bytes from ``offset`` on are equal but for such."""
        a, b = (node.parameters for node in self._nodes)
        differing = {at for at in range(offset, offset + count) if a[at] != b[at]}
        return not differing or differing <= self._found()

    def touches(self, offset: int, count: int) -> bool:
        """Whether any of these bytes is such: then they are no address, of which every byte is read."""
        return not self._found().isdisjoint(range(offset, offset + count))

    def _found(self) -> set[int]:
        if self._bytes is None:
            self._bytes = set.intersection(*map(unused_bytes, self._nodes, self._contains))
        return self._bytes


def _owner(node: RawNode, offset: int, value: int, static_owner: Callable[[int], str | None]) -> str | None:
    try:
        return static_owner(value)
    except RefusedError as refusal:  # it knows the address only: say which kernel holds it
        if refusal.outside and node.name.startswith(CUDNN):
            return "cuDNN's own memory"
        reason = refusal.reason
        message = f"{reason.message} (bytes {offset}..{offset + 8} of its parameters)"
        named = RefusedError(replace(reason, message=message, operation=node.name))
        named.address = refusal.address
        raise named from None


def _refuse(node: RawNode, offset: int, nbytes: int, why: str) -> NoReturn:
    raise RefusedError(
        Reason(
            "unexplained-word",
            f"bytes {offset}..{offset + nbytes} of a kernel's parameters differ between two captures ({why})",
            operation=node.name,
        )
    )


def _refuse_stale(node: RawNode, offset: int) -> NoReturn:
    raise RefusedError(
        Reason(
            "stale-address",
            f"bytes {offset}..{offset + 8} of a kernel's parameters hold one phantom address in both captures: "
            "memory that an earlier capture left behind",
            operation=node.name,
        )
    )


def check_same_shape(first: Side, second: Side) -> None:
    """Refuse two captures of one partition that did not record the same nodes and allocations."""
    if len(first.nodes) != len(second.nodes):
        raise RefusedError(
            Reason("unstable-capture", f"two captures recorded {len(first.nodes)} and {len(second.nodes)} nodes")
        )
    for a, b in zip(first.nodes, second.nodes, strict=True):
        same = (a.kind, a.name, a.grid, a.block, a.shared_bytes, len(a.parameters), a.deps, a.position)
        if same != (b.kind, b.name, b.grid, b.block, b.shared_bytes, len(b.parameters), b.deps, b.position):
            raise RefusedError(Reason("unstable-capture", "two captures recorded different nodes", operation=a.name))
    sizes = [[a.size for a in side.allocations] for side in (first, second)]
    if sizes[0] != sizes[1]:
        raise RefusedError(Reason("unstable-capture", "two captures made different allocations"))


def _resolve(
    indices: tuple[_Index, _Index], values: tuple[int, int], positions: tuple[int, int]
) -> tuple[int, int] | None:
    """(allocation, offset) that explains both values, or None. Covering allocations come before neighbours."""
    one, two = (index.covering(v, p) for index, v, p in zip(indices, values, positions, strict=True))
    match one:
        case [only] if one == two:  # nearly always
            mine, other = (v - index.allocations[only].address for index, v in zip(indices, values, strict=True))
            if mine == other:
                return only, mine
    for find in (_Index.covering, _Index.neighbours):
        candidates = [find(index, v, p) for index, v, p in zip(indices, values, positions, strict=True)]
        agreed = []
        for i in candidates[0]:
            delta = values[0] - indices[0].allocations[i].address
            if i in candidates[1] and values[1] - indices[1].allocations[i].address == delta:
                agreed.append((i, delta))
        if agreed:  # merge_ambiguous has already joined what cannot be told apart in time
            return min(agreed, key=lambda t: (t[1] < 0, abs(t[1])))
    return None


def merge_ambiguous(allocations: Sequence[RawAllocation]) -> list[RawAllocation]:
    """Join allocations whose bytes and whose lives, as far as they are known, both overlap.

    Inside one C call the position of an allocation is only bounded, so what such calls make and free may overlap;
    joined, they keep the layout that was captured, which is always right.
    """
    merged = list(allocations)
    while True:  # what was joined lives longer and reaches further, so it may overlap others in its turn
        groups = _groups(merged)
        if len(groups) == len(merged):
            return merged
        merged = [_join(group) for group in groups]


def _groups(allocations: Sequence[RawAllocation]) -> list[list[RawAllocation]]:
    """Those that must be one: by rising address, each is compared only with whom it meets in time."""
    parent = list(range(len(allocations)))

    def find(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    # Lives at the addresses reached, no two of which meet, so that all four lists rise: who lives, and how far up.
    begun: list[int] = []
    over: list[int] = []
    ends: list[int] = []
    who: list[int] = []
    for i in sorted(range(len(allocations)), key=lambda i: allocations[i].address):
        a = allocations[i]
        born, died, end = a.born, sys.maxsize if a.died is None else a.died, a.address + a.size
        first, last = bisect.bisect_right(over, born), bisect.bisect_left(begun, died)
        for n in range(first, last):
            if ends[n] > a.address:  # else it lies below, as does all that it could meet from here on
                low, high = sorted((find(i), find(who[n])))
                parent[high] = low
                born, died, end = min(born, begun[n]), max(died, over[n]), max(end, ends[n])
        begun[first:last], over[first:last], ends[first:last], who[first:last] = [born], [died], [end], [i]
    groups: dict[int, list[RawAllocation]] = {}
    for i, a in enumerate(allocations):
        groups.setdefault(find(i), []).append(a)
    return list(groups.values())


def _join(group: list[RawAllocation]) -> RawAllocation:
    start = min(a.address for a in group)
    deaths = [a.died for a in group]
    last = None if None in deaths else max(d for d in deaths if d is not None)
    end = max(a.address + a.size for a in group)
    return RawAllocation(start, end - start, min(a.born for a in group), last)
