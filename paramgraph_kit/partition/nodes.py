"""What an FX node of a post-AOT graph is: a kernel, a view, a size; which memory it reads, writes and shares."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import torch
import torch.fx

_SIZES = frozenset({"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset"})
ALLOCATIONS = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
                         "aten::new_empty_strided", "aten::empty_permuted"})  # fmt: skip
_STRIDED = frozenset({"aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter"})
# A copy of all of a tensor's storage, so that the copy lies in its own as the tensor does, with a part overwritten.
_OVERWRITTEN = frozenset({"aten::slice_scatter", "aten::select_scatter", "aten::diagonal_scatter",
                          "aten::as_strided_scatter"})  # fmt: skip
_SYMBOLS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


class Kind(StrEnum):
    """The part that a node plays in a split."""

    INPUT = "input"
    CONSTANT = "constant"  # a tensor attribute of the module
    MODULE = "module"  # the body of a higher-order operation
    KERNEL = "kernel"  # does work of its own, on whatever device
    VIEW = "view"  # another look at memory that exists
    SYMBOL = "symbol"  # sizes and arithmetic on them, on the host
    ITEM = "item"  # takes one value out of a node's tuple
    CHECK = "check"  # a host-side assertion: no value, but not to be dropped
    ORDER = "order"  # one stream waits for another: no value, and nothing for a graph but an edge
    OUTPUT = "output"


def kind_of(node: torch.fx.Node) -> Kind:
    """Classify ``node``; a node without ``meta["val"]`` counts as a kernel."""
    if node.op == "placeholder":
        return Kind.INPUT
    if node.op == "output":
        return Kind.OUTPUT
    if node.op == "get_attr":
        value = attribute(node)
        return Kind.MODULE if isinstance(value, torch.nn.Module) else Kind.CONSTANT
    if node.target is operator.getitem:
        return Kind.ITEM
    value = node.meta.get("val", node)
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target._schema.name in _SIZES:
            return Kind.SYMBOL
        if target.namespace == "streams":
            return Kind.ORDER
        if _shares_everything(node):
            return Kind.VIEW
        if not target._schema.returns and not target._schema.is_mutable and not operands(node):
            return Kind.CHECK  # _assert_scalar, sym_constrain_range: torch leaves some of them without meta["val"]
        return Kind.KERNEL
    if isinstance(target, torch._ops.OperatorBase) or not isinstance(value, _SYMBOLS):
        return Kind.KERNEL
    return Kind.SYMBOL


def attribute(node: torch.fx.Node) -> Any:
    """The value that a ``get_attr`` node names."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner


def value_of(node: torch.fx.Node) -> Any:
    """The traced value of ``node``: fake tensors, symbols or, for a constant, the tensor itself."""
    if "val" not in node.meta and node.op == "get_attr":
        return attribute(node)
    return node.meta.get("val")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a traced value, which may be a tensor, a symbol, None or a sequence of these."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def storage_key(tensor: torch.Tensor) -> int | None:
    """What two traced tensors have in common when they share memory; None for sparse ones."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def storage_keys(node: torch.fx.Node) -> set[int]:
    """The storages that the value of ``node`` lives in."""
    return {key for t in tensors_in(value_of(node)) if (key := storage_key(t)) is not None}


def from_storage(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Those that look at a graph's input from an offset of its storage on, wherever in it the input lies.

    Or at a copy of its whole storage: then what makes the copy, too.
    """
    like = {key for node in nodes if node.op == "placeholder" for key in storage_keys(node)}
    copies: dict[int, list[torch.fx.Node]] = {}  # of inputs' storages, by their own: what made each
    found: dict[torch.fx.Node, None] = {}
    for node in nodes:
        target = node.target
        if _looks_from_storage(node) and any(storage_keys(each) & like for each in node.all_input_nodes):
            found[node] = None
        if not isinstance(target, torch._ops.OpOverload) or not node.all_input_nodes:
            continue
        if not (bases := storage_keys(node.all_input_nodes[0]) & like):
            continue
        made_by = [maker for key in bases for maker in copies.get(key, [])]
        if target._schema.name in _STRIDED and _argument(node, "storage_offset") is not None:
            found |= dict.fromkeys([*made_by, node])
        if target._schema.name in _OVERWRITTEN:
            copies |= {key: [*made_by, node] for key in storage_keys(node) - bases}
            like |= storage_keys(node)
    return list(found)


def _looks_from_storage(node: torch.fx.Node) -> bool:
    """Whether an operation of somebody's writes a view that is made again from an offset of the storage on."""
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    return any(name.endswith("_storage_offset") and offset is not None for name, offset in node.kwargs.items())


def _argument(node: torch.fx.Node, name: str) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    places = [argument.name for argument in node.target._schema.arguments]
    place = places.index(name)
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def is_random(node: torch.fx.Node) -> bool:
    """Whether running ``node`` advances a random-number generator; attention's backward is given what was drawn."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    return not any(argument.name in ("philox_seed", "rng_state") for argument in target._schema.arguments)


def is_ordered(node: torch.fx.Node) -> bool:
    """Whether ``node`` must keep its place among its like: random numbers, assertions, higher-order operations."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return is_random(node) or (node.is_impure() and not target._schema.is_mutable)
    return isinstance(target, torch._ops.OperatorBase)


def written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The argument nodes whose memory ``node`` writes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return []
    found: list[torch.fx.Node] = []
    for index, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        torch.fx.map_arg(value, found.append)
    return found


def launches(node: torch.fx.Node, device_type: str) -> bool:
    """Whether ``node`` makes ``device_type`` do work: not views, sizes, mere allocations or other devices' work."""
    if kind_of(node) is not Kind.KERNEL:
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target._schema.name in ALLOCATIONS:
        return False
    tensors = [*tensors_in(value_of(node)), *operands(node)]
    return any(t.device.type == device_type for t in tensors)


def operation_of(node: torch.fx.Node) -> str:
    """The operation's name as users know it, without the overload: ``aten.mm``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket)
    return getattr(target, "__name__", str(target))


def operands(node: torch.fx.Node) -> list[torch.Tensor]:
    """The traced tensors that ``node`` takes."""
    return [t for source in node.all_input_nodes for t in tensors_in(value_of(source))]


def _shares_everything(node: torch.fx.Node) -> bool:
    """A view is told by its traced storage: that also covers ``_unsafe_view``, whose schema hides it."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if node.target._schema.is_mutable:
        return False
    made = [storage_key(t) for t in tensors_in(node.meta.get("val"))]
    taken = {storage_key(t) for t in operands(node)} - {None}
    return bool(made) and all(key in taken for key in made)
