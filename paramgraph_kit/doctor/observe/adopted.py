"""Graphs of before: which gradients they write, or step with, and whose states they hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.captured_before import bodies_of, captured_before, written_in
from paramgraph_kit.doctor.observe.captured_entries import above_of
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.graphed_by_torch import graphed_modules
from paramgraph_kit.doctor.observe.held import cells_of, is_a, parameters_at, tensors_in
from paramgraph_kit.doctor.observe.learning import learning
from paramgraph_kit.doctor.observe.optimizers import state_begun_inside
from paramgraph_kit.doctor.observe.own_graphs import OwnGraphs
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.zeroed_ahead import learning_in
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref


def adopt(graphs: OwnGraphs, function: Callable[..., Any], given: Iterable[Any] = ()) -> None:
    """What the file of a function has captured already, and what these graphs do with gradients and states."""
    given = [*given]
    plain = getattr(function, "__func__", function)
    roots = [dict(enumerate([getattr(function, "__self__", function), *given])), getattr(plain, "__globals__", {})]
    roots += [{name: cell.cell_contents for name, cell in cells_of(plain).items()}] if is_a(plain, FunctionType) else []
    graphs.captured_before(captured_before(function, graphs.device, given), roots)
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        _adopt_graphed(graphs, roots)
    regions = [region for region in graphs.regions or () if not region.of_torch]
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        graphs.carried |= {storage_key(tensor) for region in regions for _, tensor in written_in(region)}
        learn = [region for region in regions if _calls(region, "backward")]
        for region in regions:
            if (one := graphs.of(region.graph)) is not None:
                one.hosts |= {storage_key(t): (storage_ref(t.untyped_storage()), fills) for t, fills in _hosts(region)}
            steps = _stepped(region)
            graphs.states.adopt(region.graph, [optimizer for optimizer, _ in steps])
            own = graphs.of(region.graph)
            for optimizer, use in steps:
                if own is not None and any(map(own.writes, tensors_in([*optimizer.state.values()]))):
                    failure = state_begun_inside(optimizer, frame_at(use.code, use.node.lineno))
                    graphs.states.begun(region.graph, failure)
            _gradients(graphs, region, learn, [optimizer for optimizer, _ in steps])


def _adopt_graphed(graphs: OwnGraphs, roots: Iterable[Any]) -> None:
    """What torch has graphed in place of modules in reach, whatever function has asked for it."""
    for each in graphed_modules(roots):
        forward, backward = each.graphs
        if forward in graphs:
            continue
        for graph in filter(None, each.graphs):
            graphs.adopt(graph)
            graphs.known[id(graph)].by_torch = True
        if backward is not None:
            graphs.graphed.belong(forward, backward)


def _gradients(graphs: OwnGraphs, region: Region, learn: list[Region], optimizers: list[torch.optim.Optimizer]) -> None:
    """Tell what watches gradients which of them this graph writes, and which it steps with."""
    known = {id(each.graph): each for each in (graphs.of(r.graph) for r in learn) if each is not None}
    if (own := graphs.of(region.graph)) is None:
        return
    stepped = {storage_key(p) for optimizer in optimizers for p in parameters_at(optimizer)}
    weights = learning() if stepped or id(region.graph) in known else ()
    written, read, made = dict[torch.Tensor, torch.Tensor](), dict[torch.Tensor, torch.Tensor](), set[int]()
    for parameter, grad in ((p, p.grad) for p in weights if p.grad is not None and p.device.type == graphs.device):
        makers = [each for each in known.values() if each.writes(grad)]
        touched = grad.untyped_storage().data_ptr() in own.touched
        if storage_key(parameter) in stepped:
            if id(region.graph) not in known:
                read[parameter] = grad
        elif id(region.graph) in known and (makers == [own] or (touched and not makers)):
            written[parameter] = grad
            made |= {storage_key(grad)} if makers else set()
    codes = [code for code, _, _ in bodies_of(region)]
    graphs.between.adopt(region.graph, region, codes, written, read, made)
    if id(region.graph) in known and not stepped and not written:
        used = {name for code in codes for name in code.co_names}
        graphs.between.bare.learns(region, [p for p in learning_in(region, used) if p.grad is None])
    met = {storage_key(t) for pair in (written, read) for each in pair.items() for t in each}
    graphs.flow.adopt(region.graph, met | own.reads.keys())


def _hosts(region: Region) -> Iterator[tuple[torch.Tensor, bool]]:
    """Memory of the host's that lines of a capture copy, and whether they write there."""
    for name in ("copy_", "to", "cuda"):
        for use in _calls(region, name):
            method = above_of(use.code, use.node)
            call = above_of(use.code, method) if method is not None else None
            given = call.args[0] if name == "copy_" and isinstance(call, ast.Call) and call.args else None
            sides = [use.value(), Use(use.code, given, False, use.names).value() if given is not None else None]
            for number, side in enumerate(sides):
                if is_a(side, torch.Tensor) and side.device.type == "cpu" and side.numel():
                    yield side, name == "copy_" and number == 0


def _stepped(region: Region) -> list[tuple[torch.optim.Optimizer, Use]]:
    """The optimizers whose step a capture has, each with the first call of it."""
    found: dict[int, tuple[torch.optim.Optimizer, Use]] = {}
    for use in _calls(region, "step"):
        if is_a(value := use.value(), torch.optim.Optimizer):
            found.setdefault(id(value), (value, use))
    return [*found.values()]


def _calls(region: Region, name: str) -> list[Use]:
    """Whose method of this name the lines of a capture call, and those of what it calls."""
    return [
        Use(code, node.func.value, False, names)
        for code, nodes, names in bodies_of(region)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    ]
