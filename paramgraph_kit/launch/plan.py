"""The workspace plan: one block of memory for all that lives only inside a graph, and the bindings of its words.

Two buffers may share bytes only if every use of one precedes every use of the other in the graph's order, not in
the order of recording: branches of several streams run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

import torch

from paramgraph_kit.capture.pair import Captured, Kind, Output
from paramgraph_kit.driver.api import Binding, RawNode
from paramgraph_kit.trace.model import Role, WordKind

SMALL = 64 << 10  # what is smaller than this is not worth a place of its own
GRAIN = 512  # the caching allocator's rounding: what kernels were captured on is aligned no less


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one allocation lives at launch."""

    role: Role
    slot: int | None  # None: no node addresses it
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Slots are: tensor inputs, then fresh output allocations, then the workspace (if any)."""

    placements: tuple[Placement, ...]  # per allocation
    fresh: tuple[int, ...]  # allocations that become outputs on memory of their own, in slot order
    workspace_bytes: int
    slots: int
    bindings: tuple[Binding, ...]
    donors: tuple[int, ...] = ()  # positions of inputs whose memory is used again once the graph has read it
    inherited: dict[int, int] = field(default_factory=dict)  # output allocation -> position of the donor


def make_plan(captured: Captured, donatable: Sequence[int] = (), worth: int = 0) -> Plan:
    """Assign every addressed allocation a slot and an offset.

    ``donatable`` are positions of inputs that die with the call: what is needed after their last use may take their
    memory, if that saves at least ``worth`` bytes in all.
    """
    uses = uses_of(captured)
    inputs = len(captured.input_positions)
    returned = tuple(dict.fromkeys(o.source for o in captured.outputs if o.kind is Kind.FRESH and o.source >= 0))
    given_out = set(returned)
    inner = [i for i in sorted(uses) if i >= inputs and i not in given_out]
    sizes = {i: captured.allocations[i].size for i in inner}
    order = Order(captured.recording.nodes, uses)
    offsets, total = pack(list(sizes.values()), conflicts(order, inner))
    heirs = Heirs()
    if donatable:
        heirs = inherit(captured, order, donatable, returned, sizes)
        rest = [i for i in inner if i not in heirs.inner]
        smaller, less = pack([sizes[i] for i in rest], conflicts(order, rest))
        if heirs.output_bytes + total - less >= worth:
            inner, offsets, total = rest, smaller, less
        else:
            heirs = Heirs()
    fresh = tuple(i for i in returned if i not in heirs.outputs)
    workspace_slot = inputs + len(fresh)
    placements = [Placement(Role.INPUT, i) for i in range(inputs)]
    placements += [Placement(Role.WORKSPACE, None) for _ in range(inputs, len(captured.allocations))]
    for i, offset in zip(inner, offsets, strict=True):
        placements[i] = Placement(Role.WORKSPACE, workspace_slot, offset)
    for i, (donor, offset) in heirs.inner.items():
        placements[i] = Placement(Role.WORKSPACE, donor, offset)
    for k, i in enumerate(fresh):
        placements[i] = Placement(Role.OUTPUT, inputs + k)
    for i, donor in heirs.outputs.items():
        placements[i] = Placement(Role.OUTPUT, donor)
    bindings = tuple(
        Binding(node, word.offset, slot, placements[word.allocation].offset + word.delta)
        for node, words in enumerate(captured.words)
        for word in words
        if word.kind is WordKind.POINTER
        and word.allocation is not None
        and (slot := placements[word.allocation].slot) is not None
    )
    used = sorted({*heirs.outputs.values(), *(donor for donor, _ in heirs.inner.values())})
    return Plan(
        tuple(placements),
        fresh,
        total,
        workspace_slot + bool(total),
        bindings,
        tuple(captured.input_positions[d] for d in used),
        {i: captured.input_positions[d] for i, d in heirs.outputs.items()},
    )


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


class Order:
    """Which allocation's uses all come before another's, by the graph's edges."""

    def __init__(self, nodes: Sequence[RawNode], uses: Mapping[int, Sequence[int]]) -> None:
        self.uses = uses
        self.is_chain = all(node.deps == ((i - 1,) if i else ()) for i, node in enumerate(nodes))
        self._own: dict[int, int] = {}
        self._before: dict[int, int] = {}
        if self.is_chain:
            return
        ancestors: list[int] = []
        for node in nodes:
            bits = 0
            for d in node.deps:
                bits |= ancestors[d] | 1 << d
            ancestors.append(bits)
        for allocation, found in uses.items():
            self._own[allocation] = sum(1 << n for n in found)
            self._before[allocation] = reduce(and_, (ancestors[n] for n in found))

    def precedes(self, a: int, b: int) -> bool:
        """Whether every use of ``a`` is over before any use of ``b`` begins."""
        if a not in self.uses or b not in self.uses:
            return True
        if self.is_chain:
            return self.uses[a][-1] < self.uses[b][0]
        return not self._own[a] & ~self._before[b]


def conflicts(order: Order, allocations: Sequence[int]) -> list[list[int]]:
    """For each of ``allocations``, those (by place in the list) that it must not share bytes with."""
    result: list[list[int]] = [[] for _ in allocations]
    if order.is_chain:  # lives are intervals
        uses = [order.uses[i] for i in allocations]
        live: list[int] = []
        for b in sorted(range(len(uses)), key=lambda b: uses[b][0]):
            live = [other for other in live if uses[other][-1] >= uses[b][0]]
            for other in live:
                result[b].append(other)
                result[other].append(b)
            live.append(b)
        return result
    for a in range(len(allocations)):
        for b in range(a):
            if not (order.precedes(allocations[a], allocations[b]) or order.precedes(allocations[b], allocations[a])):
                result[a].append(b)
                result[b].append(a)
    return result


@dataclass(slots=True)
class Heirs:
    """Who takes over the memory of dying inputs."""

    outputs: dict[int, int] = field(default_factory=dict)  # output allocation -> donor (an input allocation)
    inner: dict[int, tuple[int, int]] = field(default_factory=dict)  # allocation -> (donor, offset)
    output_bytes: int = 0


def inherit(
    captured: Captured,
    order: Order,
    donatable: Sequence[int],
    returned: Sequence[int],
    sizes: Mapping[int, int],
) -> Heirs:
    """Give dying inputs' memory to outputs of about their size, then to what lives inside the graph."""
    heirs = Heirs()
    place = {position: i for i, position in enumerate(captured.input_positions)}
    returned_inputs = {o.source for o in captured.outputs if o.kind in (Kind.INPUT, Kind.ARGUMENT)}
    donors = {place[p]: captured.allocations[place[p]].size for p in donatable if p not in returned_inputs}
    by_source: dict[int, list[Output]] = {}
    for output in captured.outputs:
        if output.kind is Kind.FRESH:
            by_source.setdefault(output.source, []).append(output)
    taken: dict[int, int] = {}
    for o in sorted(returned, key=lambda i: (-captured.allocations[i].size, i)):
        size = captured.allocations[o].size
        if len(by_source[o]) != 1 or by_source[o][0].offset or size < SMALL:
            continue
        fitting = [
            d
            for d, room in donors.items()
            if d not in taken
            and size <= room <= size * 4 // 3  # the heir keeps the whole block for as long as it lives
            and _dtype_of(captured, d) == by_source[o][0].dtype
            and order.precedes(d, o)
        ]
        if fitting:
            donor = min(fitting, key=lambda d: (donors[d], d))
            taken[donor] = o
            heirs.outputs[o] = donor
            heirs.output_bytes += size
    tenants: dict[int, list[int]] = {d: [] for d in donors}
    for t in sorted(sizes, key=lambda i: (-sizes[i], i)):
        if sizes[t] < SMALL:
            break
        for donor in sorted(donors, key=lambda d: (donors[d], d)):
            if not order.precedes(donor, t) or (donor in taken and not order.precedes(t, taken[donor])):
                continue
            group = [*tenants[donor], t]
            offsets, total = pack([sizes[i] for i in group], conflicts(order, group))
            if total <= donors[donor]:
                tenants[donor] = group
                for i, offset in zip(group, offsets, strict=True):
                    heirs.inner[i] = (donor, offset)
                break
    return heirs


def _dtype_of(captured: Captured, allocation: int) -> torch.dtype | None:
    spec = captured.specs[captured.input_positions[allocation]]
    return spec.dtype if spec else None


def pack(sizes: Sequence[int], conflict: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Offsets for buffers and the total: largest first, each into the tightest gap that its conflicts leave.

    >>> pack([1024, 512, 512], [[1], [0, 2], [1]])
    ([0, 1024, 0], 1536)
    """
    rounded = [-(-max(size, 1) // GRAIN) * GRAIN for size in sizes]
    offsets: list[int | None] = [None] * len(sizes)
    total = 0
    for b in sorted(range(len(sizes)), key=lambda b: (-rounded[b], b)):
        taken = sorted((o, o + rounded[c]) for c in conflict[b] if (o := offsets[c]) is not None)
        best, best_gap, end = None, 0, 0
        for start, stop in taken:
            gap = start - end
            if gap >= rounded[b] and (best is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        place = end if best is None else best
        offsets[b] = place
        total = max(total, place + rounded[b])
    return [o or 0 for o in offsets], total
