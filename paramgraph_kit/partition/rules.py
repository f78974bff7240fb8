"""Why an FX node may not be in a graph: the rules of Inductor's graph partition, told at the user's line.

The order is that of ``Scheduler.should_partition`` (torch 2.11 to 2.13), except that a copy between devices is
called one on both ends. Inductor decides on its own IR after fusion; these rules decide on the FX node before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from paramgraph_kit.driver.api import TIMED_EVENT
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.frames import frame_of
from paramgraph_kit.partition.host_reads import host_read, refused_kernel
from paramgraph_kit.partition.lanes import host_waits, record_now
from paramgraph_kit.partition.nodes import Kind, attribute, kind_of, operation_of, tensors_in, value_of
from paramgraph_kit.partition.normalize import is_copy, normalized, scalars_to_move
from paramgraph_kit.trace.model import Reason

_CONTROL_FLOW = frozenset({"cond", "while_loop", "while_loop_stack_output", "switch"})
_RESIZES = frozenset({"aten::set_", "aten::resize_", "aten::shallow_copy_data_", "inductor::resize_storage_bytes_"})
_MASK = (torch.bool, torch.uint8)


def reason(node: torch.fx.Node, device_type: str) -> Reason | None:
    """Why ``node`` of a post-AOT graph cannot be in a graph on ``device_type``; None if it can.

    Views, sizes and arithmetic on sizes never stand in the way, so they have no reason.
    """
    if kind_of(node) is not Kind.KERNEL:
        return None
    if (refusal := refused_kernel(node)) is not None:
        text = f"{refusal.message}, in its kernel {refusal.operation}" if refusal.operation else refusal.message
        return Reason(refusal.code, text, frame_of(node), operation_of(node))
    found = _find(node, device_type)
    if found is None:
        return None
    code, message = found
    return Reason(code, message, frame_of(node), operation_of(node))


def reasons_for(module: torch.fx.GraphModule, device_type: str) -> list[Reason]:
    """The reasons of all nodes of ``module``, in order, one per operation and user line; ``module`` stays as it is."""
    seen: dict[tuple[object, ...], Reason] = {}
    for node in normalized(module, device_type, constants=False)[0].graph.nodes:
        found = reason(node, device_type)
        if found is not None:
            key = (found.code, found.operation, found.frame and (found.frame.file, found.frame.line))
            seen.setdefault(key, found)
    return list(seen.values())


def _find(node: torch.fx.Node, device_type: str) -> tuple[str, str] | None:
    config = torch_name("config")
    names = _registered_names(node)
    if names & set(config.custom_should_partition_ops):
        return "custom-op", "listed in torch._inductor.config.custom_should_partition_ops"
    return (
        _stream_reason(node)
        or _device_reason(node, device_type)
        or _control_flow_reason(node, device_type)
        or _unbacked_reason(node)
        or _unsafe_reason(node)
        or _symbol_reason(node, config)
    )


def _stream_reason(node: torch.fx.Node) -> tuple[str, str] | None:
    if node.target is host_waits:
        return "user-stream", "the host waits there until the device is done"
    if node.target is record_now:
        return TIMED_EVENT.code, TIMED_EVENT.message
    return None


def _device_reason(node: torch.fx.Node, device_type: str) -> tuple[str, str] | None:
    if "val" not in node.meta:
        return "no-metadata", "torch recorded no shape or device for its result"
    made = {t.device.type for t in tensors_in(node.meta["val"])}
    movable = {id(n) for n in scalars_to_move(node, device_type)}
    read = [t for n in node.all_input_nodes if id(n) not in movable for t in tensors_in(value_of(n))]
    taken = {t.device.type for t in read}
    if is_copy(node) and len(made | taken) > 1:
        source, target = read[-1].device.type, next(iter(made))
        return "device-copy", f"a copy from {source} to {target}"
    elsewhere = (made or taken) - {device_type}
    if elsewhere:
        return "cpu-op", f"runs on {', '.join(sorted(elsewhere))}, not on {device_type}"
    if taken - {device_type}:
        stranger = next(t for t in read if t.device.type != device_type)
        return "cpu-op", f"reads a {stranger.device.type} tensor of shape {list(stranger.shape)} from {device_type}"
    return None


def _control_flow_reason(node: torch.fx.Node, device_type: str) -> tuple[str, str] | None:
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return None
    if operation_of(node) in _CONTROL_FLOW:
        return "control-flow", "a branch or loop on the value of a tensor"
    for body in _bodies(node):
        for inner in body.graph.nodes:
            if kind_of(inner) is Kind.ORDER:
                return "user-stream", "streams are ordered inside"
            found = reason(inner, device_type)
            if found is not None:
                return found.code, f"{found.message}, inside by {found.operation}"
    return None


def _unbacked_reason(node: torch.fx.Node) -> tuple[str, str] | None:
    data_dependent = isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.data_dependent_output in node.target.tags or torch.Tag.dynamic_output_shape in node.target.tags
    )
    if node.meta.get("unbacked_bindings"):
        return "unbacked-op", "the host must wait for a value or a size that the device computes"
    if data_dependent and not isinstance(node.meta.get("val"), torch.Tensor):
        return "unbacked-op", "the host must wait for a value that the device computes"
    return None


def _unsafe_reason(node: torch.fx.Node) -> tuple[str, str] | None:
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target._schema.name in _RESIZES:
        return "unsafe-op", "changes the storage of a tensor"
    if torch_name("is_cudagraph_unsafe_fx_node")(node):
        if any(t.is_sparse for t in tensors_in(node.meta.get("val"))):
            return "unsafe-op", "makes a sparse tensor, whose size the host must know"
        if operation_of(node).rpartition(".")[2].startswith(("index_put", "_unsafe_index_put")):
            return "unsafe-op", "a mask as index: the host must wait for the number of its true elements"
        return "unsafe-op", host_read(node) or "torch lists it as unsafe in CUDA graphs"
    if (why := host_read(node)) is not None:
        return "unsafe-op", why
    for argument in node.args:
        # auto_functionalized runs the operation that is its first argument, with_effects that behind its token
        if isinstance(argument, torch._ops.OpOverload) and torch.Tag.cudagraph_unsafe in argument.tags:
            return "unsafe-op", f"{argument} is tagged cudagraph_unsafe"
    return None


def _symbol_reason(node: torch.fx.Node, config: Any) -> tuple[str, str] | None:
    wants_static = config.triton.cudagraph_skip_dynamic_graphs
    if not wants_static and not config.cudagraph_unsafe_unbacked_ops:
        return None
    symbols = _free_symbols(node)
    unsafe = {
        symbol
        for other in node.graph.nodes
        if _registered_names(other) & set(config.cudagraph_unsafe_unbacked_ops)
        for symbol in other.meta.get("unbacked_bindings") or {}
    }
    if symbols & unsafe:
        return "unbacked-size", "uses a size that an operation in cudagraph_unsafe_unbacked_ops computes"
    if wants_static and symbols:
        return "dynamic-shape", "its shape is dynamic, and triton.cudagraph_skip_dynamic_graphs is set"
    return None


def _free_symbols(node: torch.fx.Node) -> set[Any]:
    found: set[Any] = set()
    values = [value_of(node), *(value_of(n) for n in node.all_input_nodes)]
    sizes: list[Any] = [v for v in values if isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool)]
    for tensor in (t for v in values for t in tensors_in(v) if t.layout is torch.strided):
        sizes += [*tensor.shape, *tensor.stride(), tensor.storage_offset()]
    for size in sizes:
        if not isinstance(size, int):
            found |= set(size.node.expr.free_symbols)
    return found


def _registered_names(node: torch.fx.Node) -> set[str]:
    """As Inductor matches them: ``aten::mm``, ``aten::mm.default``, ``aten::add.Tensor``, but never ``aten::add``."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return set()
    schema = target._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return {name, f"{name}.{schema.overload_name or 'default'}"}


def _bodies(node: torch.fx.Node) -> Iterator[torch.fx.GraphModule]:
    for source in node.all_input_nodes:
        if source.op == "get_attr" and isinstance(body := attribute(source), torch.fx.GraphModule):
            yield body
