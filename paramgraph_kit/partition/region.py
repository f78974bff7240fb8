"""One region of a split: a GraphModule of its own, and what a launcher must know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch.fx.graph import CodeGen

from paramgraph_kit.partition.frames import note_lines
from paramgraph_kit.partition.lanes import lane_of, on_streams, orders_streams, write_lanes
from paramgraph_kit.partition.nodes import Kind, kind_of, launches, operation_of, value_of
from paramgraph_kit.trace.model import Reason


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that run together, graphed or not.

    ``run`` takes the list of its ``inputs``' values, empties it, and returns its ``outputs``' values as a tuple.
    """

    index: int
    graphed: bool
    module: torch.fx.GraphModule = field(repr=False, compare=False)
    run: Callable[[list[Any]], tuple[Any, ...]] = field(repr=False, compare=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[str, ...]  # in order, views included
    kernels: int  # operations that make the device work
    reasons: tuple[Reason, ...] = ()


class _Boxed(CodeGen):
    """Code that takes its arguments in one list and empties it, so that it alone decides how long they live."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        names = [v.split(":")[0].split("=")[0].strip() for v in free_vars if v != "self"]
        unpack = f"\n    {', '.join(names)}, = boxed" if names else ""
        return f"def {self._func_name}(self, boxed){maybe_return_annotation}:{unpack}\n    boxed.clear()"


def build_region(
    module: torch.fx.GraphModule,
    index: int,
    kernels: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
    kinds: dict[torch.fx.Node, Kind],
    graphed: bool,
    reasons: tuple[Reason, ...],
    device_type: str,
    before: Mapping[torch.fx.Node, Set[torch.fx.Node]] = MappingProxyType({}),
) -> Region:
    """Copy ``kernels``, and the views and sizes that they or ``outputs`` want, into a module of their own.

    ``before`` has the kernels that each must follow, for those on streams of the user's.
    """
    graph = torch.fx.Graph()
    own: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        own[node] = graph.placeholder(node.name)
        own[node].meta = {**node.meta, "val": value_of(node)}
    for node in [*kernels, *outputs]:
        for wanted in _missing(node, own):
            own[wanted] = graph.node_copy(wanted, own.__getitem__)
    graph.output(tuple(own[node] for node in outputs))
    run: Callable[[list[Any]], Any] | None = None
    if graphed and len({lane_of(node) for node in kernels if launches(node, device_type)}) > 1:
        lanes, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
        lanes.output(lanes.graph_copy(graph, copies))
        copied = {node: copies[own[node]] for node in kernels}
        write_lanes(lanes, {copied[n]: {copied[b] for b in before.get(n, ()) if b in copied} for n in kernels})
        run = on_streams(_boxed(module, lanes, index).forward)
    for node in list(graph.nodes):
        if orders_streams(node):
            graph.erase_node(node)
    built = _boxed(module, graph, index)

    inner = [n for n in graph.nodes if n.op == "call_function"]
    return Region(
        index=index,
        graphed=graphed,
        module=built,
        run=run or built.forward,
        inputs=tuple(node.name for node in inputs),
        outputs=tuple(node.name for node in outputs),
        operations=tuple(operation_of(n) for n in inner if kind_of(n) in (Kind.KERNEL, Kind.VIEW, Kind.CHECK)),
        kernels=sum(launches(node, device_type) for node in kernels),
        reasons=reasons,
    )


def _boxed(module: torch.fx.GraphModule, graph: torch.fx.Graph, index: int) -> torch.fx.GraphModule:
    graph.set_codegen(_Boxed())
    built = torch.fx.GraphModule(module, graph, class_name=f"Region{index}")
    note_lines(built)
    return built


def _missing(node: torch.fx.Node, own: dict[torch.fx.Node, torch.fx.Node]) -> list[torch.fx.Node]:
    """``node`` and what it is made of, as far as it is not there yet, in the order of making."""
    result: list[torch.fx.Node] = []
    seen: set[torch.fx.Node] = set()
    stack = [(node, False)]
    while stack:
        current, ready = stack.pop()
        if current in own or (current in seen and not ready):
            continue
        if ready:
            result.append(current)
            continue
        seen.add(current)
        stack.append((current, True))
        stack.extend((source, False) for source in reversed(current.all_input_nodes))
    return result
