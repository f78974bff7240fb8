"""The workspace plan: one block of memory for all that lives only inside a graph, and the bindings of its words.

Two buffers may share bytes only if every use of one precedes every use of the other in the graph's order, not in
the order of recording: branches of several streams run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paramgraph_kit.capture.pair import Captured, Kind
from paramgraph_kit.driver.api import Binding, RawNode
from paramgraph_kit.trace.model import Role, WordKind

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
    fresh: tuple[int, ...]  # allocations that become outputs, in slot order
    workspace_bytes: int
    slots: int
    bindings: tuple[Binding, ...]


def make_plan(captured: Captured) -> Plan:
    """Assign every addressed allocation a slot and an offset."""
    uses = uses_of(captured)
    inputs = len(captured.input_positions)
    fresh = tuple(dict.fromkeys(o.source for o in captured.outputs if o.kind is Kind.FRESH and o.source >= 0))
    slot_of = {allocation: inputs + k for k, allocation in enumerate(fresh)}
    inner = [i for i in sorted(uses) if i >= inputs and i not in slot_of]
    sizes = [captured.allocations[i].size for i in inner]
    offsets, total = pack(sizes, conflicts(captured.recording.nodes, [uses[i] for i in inner]))
    workspace_slot = inputs + len(fresh)
    placements: list[Placement] = []
    place = dict(zip(inner, offsets, strict=True))
    for i in range(len(captured.allocations)):
        if i < inputs:
            placements.append(Placement(Role.INPUT, i))
        elif i in slot_of:
            placements.append(Placement(Role.OUTPUT, slot_of[i]))
        else:
            placements.append(Placement(Role.WORKSPACE, workspace_slot if i in place else None, place.get(i, 0)))
    bindings = tuple(
        Binding(node, word.offset, slot, placements[word.allocation].offset + word.delta)
        for node, words in enumerate(captured.words)
        for word in words
        if word.kind is WordKind.POINTER
        and word.allocation is not None
        and (slot := placements[word.allocation].slot) is not None
    )
    return Plan(tuple(placements), fresh, total, workspace_slot + bool(total), bindings)


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


def conflicts(nodes: Sequence[RawNode], uses: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each buffer, the buffers (by index) that it must not share bytes with."""
    result: list[list[int]] = [[] for _ in uses]
    if all(node.deps == ((i - 1,) if i else ()) for i, node in enumerate(nodes)):
        # One chain: lives are intervals.
        order = sorted(range(len(uses)), key=lambda b: uses[b][0])
        live: list[int] = []
        for b in order:
            live = [other for other in live if uses[other][-1] >= uses[b][0]]
            for other in live:
                result[b].append(other)
                result[other].append(b)
            live.append(b)
        return result
    ancestors: list[int] = []
    for node in nodes:
        bits = 0
        for d in node.deps:
            bits |= ancestors[d] | 1 << d
        ancestors.append(bits)
    own = [sum(1 << n for n in set(u)) for u in uses]
    before_all = []  # nodes that precede every use of a buffer
    for u in uses:
        bits = ancestors[u[0]]
        for n in u[1:]:
            bits &= ancestors[n]
        before_all.append(bits)
    for a in range(len(uses)):
        for b in range(a):
            if own[a] & ~before_all[b] and own[b] & ~before_all[a]:
                result[a].append(b)
                result[b].append(a)
    return result


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
