"""The plan of one executable: where every allocation lives at launch, in how many stages it is launched, and the words.

Two buffers may share bytes only if every use of one precedes every use of the other in the graph's order, not in
the order of recording: branches of several streams run side by side.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate, chain
from operator import and_, or_

from paramgraph_kit.capture.pair import Captured, Kind
from paramgraph_kit.driver.api import Binding, RawNode
from paramgraph_kit.launch.lent import lend
from paramgraph_kit.launch.stages import Lives, cut
from paramgraph_kit.trace.model import Role, WordKind

GRAIN = 512  # the caching allocator's rounding: what kernels were captured on is aligned no less
SMALL = 1 << 20  # what the allocator serves from its small pool: several of these may share one allocation
MOST_BLOCK = 512 << 20  # of workspace in one piece, which a full or divided device still has
FEW = 3  # so many tensors on one allocation save more than making it costs


@dataclass(frozen=True, slots=True)
class Input:
    """The memory of the input at ``position`` among all inputs."""

    position: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """Memory of its own, made for this launch, in the place of what was ``allocation`` in the capture: an output."""

    allocation: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """The one allocation of all small outputs that live and die together."""


@dataclass(frozen=True, slots=True)
class Block:
    """The ``number``-th of a plan's blocks of workspace."""

    number: int


Slot = Input | Fresh | Shelf | Block  # whose address a launch supplies


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one allocation lives at launch."""

    role: Role
    slot: Slot | None  # None: no node addresses it
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory for what lives only inside the graph: taken before stage ``first``, given back after stage ``last``."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch: some nodes in a row, and what they address."""

    nodes: range
    slots: tuple[Slot, ...]  # in the order of this stage's table
    bindings: tuple[Binding, ...]  # their slots count in that table
    fresh: tuple[int, ...]  # allocations of outputs that are made before it
    spent: tuple[int, ...]  # positions of inputs that no later stage and nobody after the call needs


@dataclass(frozen=True)
class Plan:
    """Where every allocation of a capture lives at launch, and in which stages."""

    placements: tuple[Placement, ...]  # per allocation
    slots: tuple[Slot, ...]  # all of them: tensor inputs, fresh outputs, the shelf (if any), blocks
    shelf_bytes: int
    blocks: tuple[Workspace, ...]
    stages: tuple[Stage, ...]

    @cached_property
    def fresh(self) -> tuple[int, ...]:
        """Allocations that become outputs on memory of their own, in slot order."""
        return tuple(slot.allocation for slot in self.slots if isinstance(slot, Fresh))

    @cached_property
    def workspace_bytes(self) -> int:
        """The most that the blocks take at one time."""
        return max(sum(b.nbytes for b in self.blocks if b.first <= s <= b.last) for s in range(len(self.stages)))

    @cached_property
    def words(self) -> int:
        """How many words are written when everything has moved."""
        return sum(len(stage.bindings) for stage in self.stages)


def make_plan(
    captured: Captured,
    dying: Sequence[int] = (),
    together: frozenset[int] = frozenset(),
    most_stages: int = 1,
    rewritten: Sequence[int] = (),
) -> Plan:
    """Assign every addressed allocation a slot and an offset, and the nodes to stages.

    ``dying`` are positions of inputs that nobody but the call holds, ``together`` those of outputs that live and die
    as one. More than one stage, up to ``most_stages``, where that keeps the memory near what it is without graphs.
    ``rewritten`` are positions of inputs that are written before they are read: until then they lend their memory.
    """
    inputs = len(captured.input_positions)
    uses = needs_of(captured)
    place = {position: i for i, position in enumerate(captured.input_positions)}
    returned = tuple(dict.fromkeys(o.source for o in captured.outputs if o.kind is Kind.FRESH and o.source >= 0))
    shelf, shelf_bytes = _shelf(captured, together, returned)
    fresh = tuple(i for i in returned if i not in shelf)
    places: dict[int, tuple[Slot, int]] = {i: (Input(p), 0) for p, i in place.items()}
    places |= {i: (Fresh(i), 0) for i in fresh}
    places |= {i: (Shelf(), offset) for i, offset in shelf.items()}
    given_back = set(returned)
    inner = [i for i in sorted(uses) if i >= inputs and i not in given_back]
    size = [a.size for a in captured.allocations]
    order = Order(captured.recording.nodes, uses)
    lent = {place[p]: spec.nbytes for p in rewritten if (spec := captured.specs[p]) is not None and place[p] in uses}
    for i, (host, offset) in lend(order, size, inner, lent, GRAIN).items():
        places[i] = places[host][0], offset
    inner = [i for i in inner if i not in places]
    kept = {o.source for o in captured.outputs if o.kind in (Kind.INPUT, Kind.ARGUMENT)}
    lives = Lives(
        len(captured.recording.nodes),
        dying=[(size[place[p]], uses[place[p]][-1]) for p in dying if p not in kept and place[p] in uses],
        made=[(size[i], uses[i][0] if i in uses else 0) for i in fresh],
        inner=[(size[i], uses[i][0], uses[i][-1]) for i in inner],
    )
    ranges = cut(lives, most_stages)
    starts = [r.start for r in ranges]

    def stage_of(node: int) -> int:
        return bisect_right(starts, node) - 1

    groups: dict[tuple[int, int], list[int]] = {}
    for i in inner:
        groups.setdefault((stage_of(uses[i][0]), stage_of(uses[i][-1])), []).append(i)
    blocks: list[Workspace] = []
    for (first, last), group in sorted(groups.items()):
        sizes = [size[i] for i in group]
        offsets, _ = pack(sizes, conflicts(order, group))
        for span in spans(sizes, offsets):
            mine = [(i, at - span.start) for i, at in zip(group, offsets, strict=True) if at in span]
            places |= {i: (Block(len(blocks)), offset) for i, offset in mine}
            blocks.append(Workspace(len(span), first, last))
    slots = tuple(dict.fromkeys(slot for slot, _ in places.values()))
    placements = [_placement(*places.get(i, (None, 0)), inside=i >= inputs) for i in range(len(size))]
    born = {i: stage_of(uses[i][0]) if i in uses else 0 for i in fresh}
    spent = [stage_of(uses[i][-1]) if i in uses else 0 for i in range(inputs)]
    stages = []
    number = {slot: n for n, slot in enumerate(slots)}
    at = {i: (number[slot], offset) for i, (slot, offset) in places.items()}
    for s, nodes in enumerate(ranges):
        table, bindings = _bind(captured, nodes, at, slots)
        made = tuple(i for i, stage in born.items() if stage == s)
        gone = () if s == len(ranges) - 1 else (p for p, i in place.items() if spent[i] == s and p not in kept)
        stages.append(Stage(nodes, table, bindings, made, tuple(gone)))
    return Plan(tuple(placements), slots, shelf_bytes, tuple(blocks), tuple(stages))


def _placement(slot: Slot | None, offset: int, *, inside: bool) -> Placement:
    match slot:
        case Input() if not inside:
            return Placement(Role.INPUT, slot, offset)
        case Fresh() | Shelf():
            return Placement(Role.OUTPUT, slot, offset)
        case _:
            return Placement(Role.WORKSPACE, slot, offset)


def _bind(
    captured: Captured, nodes: range, places: Mapping[int, tuple[int, int]], slots: Sequence[Slot]
) -> tuple[tuple[Slot, ...], tuple[Binding, ...]]:
    """Those of ``slots`` that some nodes address, and their words with slots counted among these.

    ``places`` has the number of a slot and an offset for every allocation that a node addresses.
    """
    found: list[tuple[int, int, int, int]] = []
    pointer = WordKind.POINTER
    for node in nodes:
        for word in captured.words[node]:
            if word.kind is pointer and word.allocation is not None:
                slot, offset = places[word.allocation]
                found.append((node, word.offset, slot, offset + word.delta))
    addressed = {slot for _, _, slot, _ in found}
    table = [n for n in range(len(slots)) if n in addressed]
    number = {slot: n for n, slot in enumerate(table)}
    bindings = tuple([Binding(node, offset, number[slot], delta) for node, offset, slot, delta in found])
    return tuple([slots[n] for n in table]), bindings


def _shelf(captured: Captured, together: frozenset[int], returned: Sequence[int]) -> tuple[dict[int, int], int]:
    """Offsets of the small outputs that live and die together, and the bytes of one allocation for them all."""
    apart = {o.source for k, o in enumerate(captured.outputs) if o.kind is Kind.FRESH and k not in together}
    small = [i for i in returned if i not in apart and captured.allocations[i].size <= SMALL]
    if len(small) < FEW:
        return {}, 0
    offsets, total = {}, 0
    for i in small:
        offsets[i] = total
        total += _rounded(captured.allocations[i].size)
    return offsets, total


def uses_of(captured: Captured) -> dict[int, list[int]]:
    """Which nodes address each allocation."""
    uses: dict[int, list[int]] = {}
    for node, words in enumerate(captured.words):
        for word in words:
            if word.kind is WordKind.POINTER and word.allocation is not None:
                found = uses.setdefault(word.allocation, [])
                if not found or found[-1] != node:
                    found.append(node)
    return uses


def needs_of(captured: Captured) -> dict[int, Sequence[int]]:
    """Which nodes each addressed allocation must be there for: more than address it by a word of their own.

    An address may be written to a table on the device, as for cuBLAS's and cuSOLVER's batched and for grouped kernels,
    and who reads the table shows the table's address only. What the captured code still held may be read so; what it
    had freed may not. Inputs are held to the end by whoever captures: there those are looked for who read a table after
    the address may have been written to it. (Who read that memory before, a forward pass its activations, does not.)
    """
    readers, nodes = uses_of(captured), captured.recording.nodes
    recorded = sorted((node.position, n) for n, node in enumerate(nodes))
    positions, rows = [position for position, _ in recorded], [n for _, n in recorded]
    in_order = rows == list(range(len(rows)))
    inputs = len(captured.input_positions)
    needs: dict[int, Sequence[int]] = dict(readers)
    for i, found in readers.items():
        if i >= inputs:
            first = bisect_right(positions, nodes[found[0]].position)
            died = captured.allocations[i].died
            end = len(nodes) if died is None else bisect_left(positions, died)
            one_run = in_order and first == found[0] + 1 and max(found) < max(end, first)
            needs[i] = range(found[0], max(end, first)) if one_run else sorted({*found, *rows[first:end]})
    tables = _beside(captured, inputs)
    for i in range(inputs):
        if i in needs:
            later = (readers[table][readers[table].index(first) :] for table, first in tables.get(i, {}).items())
            needs[i] = sorted({*needs[i], *chain.from_iterable(later)})
    return needs


def _beside(captured: Captured, inputs: int) -> dict[int, dict[int, int]]:
    """For each input, what the same kernels address and could write its address to, and the first such node.

    Nodes come in an order of the graph: none that waits for it, to read what it wrote, has a lower number.
    """
    found: dict[int, dict[int, int]] = {}
    for n, (node, words) in enumerate(zip(captured.recording.nodes, captured.words, strict=True)):
        if not node.writes_addresses:
            continue
        addressed = {word.allocation for word in words if word.kind is WordKind.POINTER}
        others = {i for i in addressed if i is not None and i >= inputs}
        for i in addressed:
            if i is not None and i < inputs:
                mine = found.setdefault(i, {})
                for other in others:
                    mine.setdefault(other, n)
    return found


class Order:
    """Which allocation's uses all come before another's, by the graph's edges."""

    def __init__(self, nodes: Sequence[RawNode], uses: Mapping[int, Sequence[int]]) -> None:
        self.uses = uses
        self.is_chain = all(node.deps == ((i - 1,) if i else ()) for i, node in enumerate(nodes))
        self._own: dict[int, int] = {}  # nodes that use it, as the bits of one integer
        self._not_before: dict[int, int] = {}  # all but those that precede every use of it
        if self.is_chain:
            return
        ancestors: list[int] = []
        for node in nodes:
            bits = 0
            for d in node.deps:
                bits |= ancestors[d] | 1 << d
            ancestors.append(bits)
        for allocation, found in uses.items():
            self._own[allocation] = sum(1 << n for n in set(found))
            self._not_before[allocation] = ~reduce(and_, (ancestors[n] for n in found))

    def precedes(self, first: int, then: int) -> bool:
        """Whether every use of one comes before every use of the other."""
        if self.is_chain:
            return self.uses[first][-1] < self.uses[then][0]
        return not self._own[first] & self._not_before[then]

    def meeting(self, allocations: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pairs of places in ``allocations``, later one first, of which neither precedes the other."""
        own = [self._own[i] for i in allocations]
        others = [self._not_before[i] for i in allocations]
        for a, (mine, not_before) in enumerate(zip(own, others, strict=True)):
            for b in range(a):
                if mine & others[b] and own[b] & not_before:
                    yield a, b


def conflicts(order: Order, allocations: Sequence[int]) -> list[int]:
    """For each of ``allocations``, those that it must not share bytes with: by place in the list, as bits."""
    if order.is_chain:  # lives are intervals: who has begun by its end, but for who was over at its beginning
        lives = [(order.uses[i][0], order.uses[i][-1]) for i in allocations]
        begun, over = _running(first for first, _ in lives), _running(last for _, last in lives)
        firsts, lasts = (sorted(ends) for ends in zip(*lives, strict=True)) if lives else ([], [])
        return [
            begun[bisect_right(firsts, last)] & ~over[bisect_left(lasts, first)] & ~(1 << b)
            for b, (first, last) in enumerate(lives)
        ]
    result = [0] * len(allocations)
    for a, b in order.meeting(allocations):
        result[a] |= 1 << b
        result[b] |= 1 << a
    return result


def _running(values: Iterable[int]) -> list[int]:
    """The places of the n least values, as bits, for each n."""
    by_value = sorted((value, n) for n, value in enumerate(values))
    return list(accumulate((1 << n for _, n in by_value), or_, initial=0))


def pack(sizes: Sequence[int], conflict: Sequence[int], most: int = MOST_BLOCK) -> tuple[list[int], int]:
    """Offsets for buffers and the total: largest first, each into the tightest gap that its conflicts leave.

    Conflicts are bits: 0b101 are the first buffer and the third.

    No buffer lies across a multiple of ``most``, so that ``spans`` can cut there; a larger one begins at one.

    >>> pack([1024, 512, 512], [0b010, 0b101, 0b010])
    ([0, 1024, 0], 1536)
    >>> pack([1024, 1024, 512], [0b110, 0b101, 0b011], most=1536)
    ([0, 1536, 1024], 2560)
    """
    rounded = [_rounded(size) for size in sizes]
    offsets: dict[int, int] = {}  # of those that are placed
    total = 0
    placed: list[tuple[int, int, int]] = []  # (offset, end, buffer) in this order
    for b in sorted(range(len(sizes)), key=lambda b: (-rounded[b], b)):
        best, best_gap, end, size = None, 0, 0, rounded[b]
        for start, stop, _ in _among(placed, conflict[b], offsets, rounded):
            if start - end >= size:
                at = _within_one(end, size, most)
                gap = start - at
                if gap >= size and (best is None or gap < best_gap):
                    best, best_gap = at, gap
            end = max(end, stop)
        place = _within_one(end, size, most) if best is None else best
        offsets[b] = place
        insort(placed, (place, place + size, b))
        total = max(total, place + size)
    return [offsets[b] for b in range(len(sizes))], total


def _among(
    placed: Sequence[tuple[int, int, int]], chosen: int, offsets: Mapping[int, int], sizes: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Those of ``placed`` that are ``chosen``; of a long graph's buffers each meets few."""
    text = f"{chosen:0{len(sizes)}b}"[::-1]
    if chosen.bit_count() * 8 > len(placed):
        return [row for row in placed if text[row[2]] == "1"]
    found, place = [], text.find("1")
    while place >= 0:
        if place in offsets:
            found.append((offsets[place], offsets[place] + sizes[place], place))
        place = text.find("1", place + 1)
    return sorted(found)


def spans(sizes: Sequence[int], offsets: Sequence[int], most: int = MOST_BLOCK) -> list[range]:
    """Blocks of at most ``most`` bytes, but for buffers that are larger, that together hold what was packed.

    An allocator that has given memory out in pieces can rarely serve one request of many GiB.

    >>> spans([1024, 1024, 512], [0, 1536, 1024], most=1536)
    [range(0, 1536), range(1536, 2560)]
    """
    ends = sorted((at, at + _rounded(size)) for at, size in zip(offsets, sizes, strict=True))
    found: list[range] = []
    for at, end in ends:
        if found and (at < found[-1].stop or at // most == found[-1].start // most):
            found[-1] = range(found[-1].start, max(end, found[-1].stop))
        else:
            found.append(range(at, end))
    return found


def _rounded(size: int) -> int:
    return -(-size // GRAIN) * GRAIN or GRAIN


def _within_one(at: int, size: int, most: int) -> int:
    """The first place from ``at`` on where a buffer does not lie across a multiple of ``most``."""
    return at if not at % most or at // most == (at + size - 1) // most else (at // most + 1) * most
