"""A copy of a graph in which what Inductor's lowering would resolve is resolved, so that the same cuts remain.

Four things: what is fixed on the host is worked out once, small constants live on the device, CPU scalars are copied
there once in an operation of their own, and filling under one mask is a ``where`` and not an indexing that needs the
number of true elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.fixed import Kept, keep_fixed
from paramgraph_kit.partition.lanes import normalize
from paramgraph_kit.partition.nodes import Kind, attribute, kind_of, tensors_in, value_of

aten = torch.ops.aten

_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::copy", "aten::to", "prims::device_put"})
_MASKED = (aten.index_put.default, aten._unsafe_index_put.default)


def normalized(
    module: torch.fx.GraphModule, device_type: str, *, constants: bool = True
) -> tuple[torch.fx.GraphModule, list[Kept]]:
    """Copy ``module`` for cutting, and what it keeps: single values pass between kernels, small operands are moved.

    Without ``constants`` the copy is only for looking at: constants that should move to the device stay behind.
    """
    graph = torch.fx.Graph()
    results = graph.graph_copy(module.graph, {})
    graph.output(results)
    copied = torch.fx.GraphModule(module, graph)
    normalize(graph)
    kept = keep_fixed(copied, device_type, compute=constants)
    for node in list(graph.nodes):
        _unpack(node)
        _fill_instead_of_index(node)
    moved: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        for scalar in scalars_to_move(node, device_type):
            if scalar not in moved:
                moved[scalar] = _on_device(copied, scalar, node, constants)
            node.replace_input_with(scalar, moved[scalar])
    return copied, kept


def scalars_to_move(node: torch.fx.Node, device_type: str) -> list[torch.fx.Node]:
    """The 0-d CPU tensors that a device operation reads and that Inductor copies to the device beforehand."""
    if kind_of(node) is not Kind.KERNEL or is_copy(node):
        return []
    made = list(tensors_in(value_of(node)))
    if not made or any(t.device.type != device_type for t in made) or device_type == "cpu":
        return []
    return [n for n in node.all_input_nodes if _is_movable_scalar(n, made[0].dtype)]


def is_copy(node: torch.fx.Node) -> bool:
    """Whether ``node`` is an operation whose purpose may be to change the device."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _COPIES


def _is_movable_scalar(source: torch.fx.Node, result: torch.dtype) -> bool:
    """Copying a wider scalar to the device would round it to bfloat16 before use, where eager rounds after."""
    value = value_of(source)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.dim() != 0:
        return False
    narrow = result in (torch.bfloat16, torch.float16)
    return not narrow or value.dtype == result or not value.dtype.is_floating_point


def _on_device(
    module: torch.fx.GraphModule, scalar: torch.fx.Node, user: torch.fx.Node, constants: bool
) -> torch.fx.Node:
    like: Any = next(tensors_in(user.meta["val"]))
    device = like.device
    if kind_of(scalar) is Kind.CONSTANT:
        name = f"{scalar.name}_on_device"
        value = attribute(scalar)
        with torch_name("unset_fake_temporarily")():
            kept = value.to(device) if constants else torch.empty_like(value, device="meta")
        module.register_buffer(name, kept)
        with module.graph.inserting_before(user):
            node = module.graph.get_attr(name)
        with like.fake_mode:  # traced values are fake
            node.meta = {"val": torch.empty((), dtype=value.dtype, device=device)}
        return node
    return _insert(user, aten._to_copy.default, (scalar,), {"device": device})


def _fill_instead_of_index(node: torch.fx.Node) -> None:
    """As Inductor lowers one boolean index with one value to a masked fill; only where strides come out the same."""
    if node.target not in _MASKED or len(node.args) < 3 or (len(node.args) > 3 and node.args[3]):
        return
    base, indices, value = node.args[:3]
    if not isinstance(indices, list | tuple) or len(indices) != 1 or not isinstance(base, torch.fx.Node):
        return
    mask: Any = indices[0]
    old: Any = node.meta.get("val")
    if mask is None or mask.meta["val"].dtype is not torch.bool or not _is_single(value, old):
        return
    first = node.prev
    for _ in range(mask.meta["val"].dim(), base.meta["val"].dim()):
        mask = _insert(node, aten.unsqueeze.default, (mask, -1), {})
    new = _insert(node, aten.where.self, (mask, value, base), {})
    if new.meta["val"].stride() == old.stride() and new.meta["val"].shape == old.shape:
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)
        return
    while node.prev is not first:
        node.graph.erase_node(node.prev)


def _is_single(value: Any, whole: Any) -> bool:
    fill = value_of(value) if isinstance(value, torch.fx.Node) else None
    if not isinstance(fill, torch.Tensor) or not isinstance(whole, FakeTensor) or fill.dtype != whole.dtype:
        return False
    if fill.device != whole.device and fill.dim() > 0:
        return False
    sizes: list[Any] = list(fill.shape)  # a symbol is not known to be 1
    return len(sizes) <= whole.dim() and all(type(size) is int and size == 1 for size in sizes)


def _insert(
    user: torch.fx.Node, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A new operation before ``user``, at its line, with the value that tracing would have recorded."""
    with user.graph.inserting_before(user):
        node = user.graph.call_function(operation, args, kwargs)
    with next(tensors_in(user.meta["val"])).fake_mode:  # type: ignore[attr-defined]  # traced values are fake
        value = operation(*torch.fx.map_arg(args, value_of), **kwargs)
    node.meta = {"val": value, "stack_trace": user.meta.get("stack_trace")}
    return node


def _unpack(node: torch.fx.Node) -> None:
    """Let users that take the whole tuple of a kernel take its items instead."""
    whole = [user for user in node.users if user.target is not operator.getitem]
    values = node.meta.get("val")
    if not whole or not isinstance(values, list | tuple):
        return
    items: list[torch.fx.Node] = []
    with node.graph.inserting_after(node):
        for index in reversed(range(len(values))):
            item = node.graph.call_function(operator.getitem, (node, index))
            item.meta = {"val": values[index], "stack_trace": node.meta.get("stack_trace")}
            items.insert(0, item)
    for user in whole:
        user.args = tuple(_swap(a, node, items) for a in user.args)
        user.kwargs = {k: _swap(a, node, items) for k, a in user.kwargs.items()}


def _swap(argument: Any, node: torch.fx.Node, items: list[torch.fx.Node]) -> Any:
    return list(items) if argument is node else argument
