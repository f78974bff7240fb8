"""Cut a post-AOT FX graph into regions, graphed and not, that together compute exactly what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from paramgraph_kit.partition.fixed import Kept
from paramgraph_kit.partition.frames import frame_of
from paramgraph_kit.partition.lanes import Around, is_ordered_by_streams
from paramgraph_kit.partition.nodes import Kind, attribute, from_storage, kind_of, launches, operation_of
from paramgraph_kit.partition.normalize import normalized
from paramgraph_kit.partition.order import dependencies, schedule
from paramgraph_kit.partition.region import Region, build_region
from paramgraph_kit.partition.rules import reason
from paramgraph_kit.trace.model import Partition, Reason

NOTHING_TO_LAUNCH = Reason("no-kernels", "only views and sizes: nothing to launch")
_FROM_STORAGE = "its offset counts from where an input's storage begins, which a launch does not know: slice the input"


@dataclass(frozen=True, slots=True)
class Split:
    """A graph as regions in the order of running, over named values.

    ``inputs`` names the graph's arguments in order, ``constants`` holds values known in advance (tensor attributes
    and literal outputs), ``outputs`` names the results in order. ``epilogue`` makes the views and sizes that only
    the caller wants; it launches nothing and is no partition.
    """

    inputs: tuple[str, ...]
    constants: dict[str, Any]
    regions: tuple[Region, ...]
    epilogue: Region | None
    outputs: tuple[str, ...]
    around: Around | None = None  # what the graph's call owes streams of the user's, where it has any
    kept: tuple[Kept, ...] = ()  # tensors on the device that would have been made on the host at each call

    def partitions(self, graph: str, first: int = 0) -> tuple[Partition, ...]:
        """What a trace records of the regions, numbered from ``first``."""
        return tuple(
            Partition(first + region.index, graph, region.graphed, region.operations, region.kernels, region.reasons)
            for region in self.regions
        )

    def __repr__(self) -> str:
        graphed = [region for region in self.regions if region.graphed]
        kernels = sum(region.kernels for region in self.regions)
        inside = sum(region.kernels for region in graphed)
        return f"Split({len(self.regions)} regions, {len(graphed)} graphed, {inside} of {kernels} kernels in graphs)"


def split(module: torch.fx.GraphModule, device_type: str) -> Split:
    """Cut ``module`` where ``rules.reason`` says so; ``module`` itself stays as it is.

    Operations keep their order within graphed and within ungraphed ones; reads, writes, random numbers and
    assertions keep theirs everywhere. Views and sizes are made again in each region that wants them.
    """
    module, kept = normalized(module, device_type)
    nodes = list(module.graph.nodes)
    absolute = from_storage(nodes)
    kinds = {node: Kind.KERNEL if node in absolute else kind_of(node) for node in nodes}
    kernels = [node for node in nodes if kinds[node] in (Kind.KERNEL, Kind.CHECK)]
    reasons = {node: found for node in kernels if (found := reason(node, device_type)) is not None}
    reasons |= {node: Reason("unsafe-op", _FROM_STORAGE, frame_of(node), operation_of(node)) for node in absolute}
    # Checks run on the host but ask for no partition of their own: they wait for the next ungraphed region.
    ungraphed = {node for node in kernels if node in reasons or kinds[node] is Kind.CHECK}

    results = _flatten(nodes[-1].args[0])
    through = _Leaves(kinds)
    needs = {node: [through.producer(leaf) for leaf in through.leaves(node.all_input_nodes)] for node in kernels}
    wanted = through.leaves([r for r in results if isinstance(r, torch.fx.Node)])
    before = dependencies(kernels, needs)
    streams = is_ordered_by_streams(nodes)
    if streams:  # each stays where it stands among the waits
        order = [node for node in nodes if node in needs or kinds[node] is Kind.ORDER]
    else:
        order = schedule(kernels, before, ungraphed, set(wanted), device_type)

    groups = _groups(order, ungraphed, kinds)
    leaves = [through.leaves(n for node in group for n in node.all_input_nodes) for group in groups]
    regions = []
    for index, group in enumerate(groups):
        later = {leaf for other in leaves[index + 1 :] for leaf in other} | set(wanted)
        members, graphed = set(group), group[0] not in ungraphed
        if graphed:
            graphed = any(launches(node, device_type) for node in group)
        why = tuple(dict.fromkeys(reasons[node] for node in group if node in reasons))
        if not graphed and not why:
            why = (NOTHING_TO_LAUNCH,)
        inputs = [leaf for leaf in leaves[index] if through.producer(leaf) not in members]
        outputs = [n for n in nodes if n in later and through.producer(n) in members]
        regions.append(build_region(module, index, group, inputs, outputs, kinds, graphed, why, device_type, before))

    constants = {node.name: attribute(node) for node in nodes if kinds[node] is Kind.CONSTANT}
    names = [r.name if isinstance(r, torch.fx.Node) else f"_literal_{i}" for i, r in enumerate(results)]
    constants |= {name: r for name, r in zip(names, results, strict=True) if not isinstance(r, torch.fx.Node)}
    own = list(dict.fromkeys(r for r in results if isinstance(r, torch.fx.Node) and through.is_made_anywhere(r)))
    epilogue = None
    if own:
        epilogue = build_region(
            module, len(regions), [], through.leaves(own), own, kinds, False, (NOTHING_TO_LAUNCH,), device_type
        )
    if epilogue is not None and not regions:
        regions, epilogue = [epilogue], None
    around = Around(nodes) if streams else None
    inputs_of_graph = tuple(node.name for node in nodes if kinds[node] is Kind.INPUT)
    return Split(inputs_of_graph, constants, tuple(regions), epilogue, tuple(names), around, tuple(kept))


class _Leaves:
    """Looks through views and sizes to the values that really pass between regions."""

    def __init__(self, kinds: dict[torch.fx.Node, Kind]) -> None:
        self._kinds = kinds
        self._index = {node: index for index, node in enumerate(kinds)}
        self._memo: dict[torch.fx.Node, frozenset[torch.fx.Node]] = {}
        for node in kinds:  # in graph order, so that no recursion is needed
            self._memo[node] = self._of(node)

    def leaves(self, nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        """The values that ``nodes`` are made of, in graph order."""
        return sorted({leaf for node in nodes for leaf in self._memo[node]}, key=self._index.__getitem__)

    def is_made_anywhere(self, node: torch.fx.Node) -> bool:
        """Whether ``node`` is a view or a size, which any region can make for itself."""
        return self._memo[node] != frozenset({node})

    def producer(self, leaf: torch.fx.Node) -> torch.fx.Node:
        """The kernel that makes ``leaf``, one of its results; ``leaf`` itself if it makes itself."""
        while self._kinds[leaf] is Kind.ITEM:
            leaf = leaf.all_input_nodes[0]
        return leaf

    def _of(self, node: torch.fx.Node) -> frozenset[torch.fx.Node]:
        kind = self._kinds[node]
        if kind is Kind.MODULE:
            return frozenset()
        if kind is Kind.ITEM and self._kinds[self.producer(node)] is Kind.KERNEL:
            return frozenset({node})
        if kind in (Kind.VIEW, Kind.SYMBOL, Kind.ITEM):
            return frozenset(leaf for source in node.all_input_nodes for leaf in self._memo[source])
        return frozenset({node})


def _groups(
    order: Sequence[torch.fx.Node], ungraphed: set[torch.fx.Node], kinds: Mapping[torch.fx.Node, Kind]
) -> list[list[torch.fx.Node]]:
    """Runs of operations that are graphed, or not; what orders streams matters only inside of one that is."""
    groups: list[list[torch.fx.Node]] = []
    for node in order:
        if kinds[node] is Kind.ORDER:
            if groups and groups[-1][0] not in ungraphed:
                groups[-1].append(node)
            continue
        if not groups or (groups[-1][0] in ungraphed) != (node in ungraphed):
            groups.append([])
        groups[-1].append(node)
    return groups


def _flatten(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]
