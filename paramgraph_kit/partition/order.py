"""The order in which kernels run: as few partitions as the dependencies allow, without holding more memory.

Inductor's two steps (``reorder_for_minimizing_partition`` and ``reorder_for_partition_with_simple_dependency``):
alternate between all ungraphed and all graphed operations that are ready; take that order only if the peak of live
memory stays within the budget, else just move loose ends to the front or back (if that stays within it, too).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set

import torch
import torch.fx

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.nodes import (
    Kind,
    is_ordered,
    kind_of,
    storage_key,
    storage_keys,
    tensors_in,
    value_of,
    written,
)

Edges = Mapping[torch.fx.Node, Set[torch.fx.Node]]


def dependencies(
    kernels: Sequence[torch.fx.Node], needs: Mapping[torch.fx.Node, Sequence[torch.fx.Node]]
) -> dict[torch.fx.Node, set[torch.fx.Node]]:
    """For each kernel the earlier kernels that it must follow: by value, by memory and by side effect.

    ``needs`` lists the values a kernel takes, seen through views: other kernels, inputs and constants.
    """
    members = set(kernels)
    before: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    writer: dict[int, torch.fx.Node] = {}
    readers: dict[int, list[torch.fx.Node]] = {}
    ordered: torch.fx.Node | None = None
    for node in kernels:
        after = {n for n in needs[node] if n in members}
        writes = {key for target in written(node) for key in storage_keys(target)}
        reads = {key for source in node.all_input_nodes for key in storage_keys(source)} - writes
        for key in reads | writes:
            if key in writer:
                after.add(writer[key])
        for key in writes:
            after.update(readers.pop(key, ()))
            writer[key] = node
        for key in reads:
            readers.setdefault(key, []).append(node)
        if is_ordered(node):
            if ordered is not None:
                after.add(ordered)
            ordered = node
        before[node] = after - {node}
    return before


def memory_budget() -> float:
    """How many times the memory of the order as it is another one may take: Inductor's setting, which 2.11 has not."""
    return float(getattr(torch_name("config").triton, "cudagraph_partition_memory_budget", 1.1))


def schedule(
    kernels: Sequence[torch.fx.Node],
    before: Edges,
    ungraphed: Set[torch.fx.Node],
    kept: Set[torch.fx.Node],
    device_type: str,
) -> list[torch.fx.Node]:
    """Order ``kernels`` for few partitions; ``kept`` are the values that outlive the graph on ``device_type``."""
    limit = memory_budget() * _peak(kernels, kept, device_type)
    for order in (_alternate(kernels, before, ungraphed), _loose_ends(kernels, before, ungraphed)):
        if _peak(order, kept, device_type) <= limit:
            return order
    return list(kernels)  # copies to the host and back, each where it was put to save memory


def _alternate(kernels: Sequence[torch.fx.Node], before: Edges, ungraphed: Set[torch.fx.Node]) -> list[torch.fx.Node]:
    place = {node: index for index, node in enumerate(kernels)}
    missing = {node: len(before[node]) for node in kernels}
    after: dict[torch.fx.Node, list[torch.fx.Node]] = {node: [] for node in kernels}
    for node in kernels:
        for earlier in before[node]:
            after[earlier].append(node)
    ready: dict[bool, list[int]] = {True: [], False: []}
    for node in kernels:
        if not missing[node]:
            heapq.heappush(ready[node in ungraphed], place[node])
    result: list[torch.fx.Node] = []
    phase = True
    while ready[True] or ready[False]:
        while ready[phase]:
            node = kernels[heapq.heappop(ready[phase])]
            result.append(node)
            for later in after[node]:
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(ready[later in ungraphed], place[later])
        phase = not phase
    return result


def _loose_ends(kernels: Sequence[torch.fx.Node], before: Edges, ungraphed: Set[torch.fx.Node]) -> list[torch.fx.Node]:
    awaited = {earlier for node in kernels for earlier in before[node]}
    front = [n for n in kernels if n in ungraphed and not before[n]]
    back = [n for n in kernels if n in ungraphed and before[n] and n not in awaited and kind_of(n) is not Kind.CHECK]
    moved = {*front, *back}
    return [*front, *(n for n in kernels if n not in moved), *back]


def _peak(kernels: Sequence[torch.fx.Node], kept: Set[torch.fx.Node], device_type: str) -> int:
    """The most bytes of intermediate storage on the device alive at once when kernels run in this order."""
    immortal = {key for node in kept for key in storage_keys(node)}
    size: dict[int, int] = {}
    last: dict[int, int] = {}
    made: list[set[int]] = []
    for index, node in enumerate(kernels):
        fresh: set[int] = set()
        for tensor in tensors_in(value_of(node)):
            key = storage_key(tensor)
            if key is not None and key not in size and tensor.device.type == device_type:
                size[key] = _bytes(tensor)
                fresh.add(key)
        made.append(fresh)
        for source in (node, *node.all_input_nodes):
            for key in storage_keys(source):
                last[key] = index
    live = peak = 0
    dying: dict[int, list[int]] = {}
    for key, index in last.items():
        if key in size and key not in immortal:
            dying.setdefault(index, []).append(key)
    for index, fresh in enumerate(made):
        live += sum(size[key] for key in fresh)
        peak = max(peak, live)
        live -= sum(size[key] for key in dying.get(index, ()))
    return peak


def _bytes(tensor: torch.Tensor) -> int:
    """The storage's size; a size that is known only while running counts as nothing."""
    nbytes = tensor.untyped_storage().nbytes()
    if isinstance(nbytes, int):
        return nbytes
    symbol: torch.SymInt = nbytes
    hint = symbol.node.hint
    return int(hint) if hint is not None else 0
