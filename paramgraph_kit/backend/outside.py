"""Make Inductor cut where it would not: it cuts at operations with a tag, so these get a name of their own with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.fx

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.host_reads import host_read, refused_kernel

# Operations of offloading, from torch 2.12 on: they wait by what Python knows of the tensors' addresses.
TRANSFERS = ("offload", "reload", "wait_tensor")
_PREFIXES = ("cpu_offload_", "gpu_reload_")  # as torch names the copies
_REORDERS = ("maybe_reorder_for_minimizing_partition", "reorder_for_partition_with_simple_dependency")
_NAMESPACE = "paramgraph_kit_outside"


def keep_outside(module: torch.fx.GraphModule) -> None:
    """Let no partition hold an operation that cannot be captured, whatever Inductor knows of it; in place."""
    changed = [node for node in module.graph.nodes if host_read(node) is not None or refused_kernel(node) is not None]
    for node in changed:
        node.target = tagged(node.target)
    if changed:
        module.recompile()


@contextmanager
def copies_in_their_place(module: torch.fx.GraphModule) -> Iterator[None]:
    """Let Inductor cut at the copies of activation offloading where they stand.

    For fewer partitions it would copy everything to the host behind the last kernel and back before the first one: all
    activations would be on the device at once, as without offloading.
    """
    if not any(_is_offloading(node) for node in module.graph.nodes):
        yield
        return
    with ExitStack() as stack:
        for name in _REORDERS:
            stack.enter_context(mock.patch.object(torch_name("Scheduler"), name, lambda _, nodes: nodes))
        yield


def _is_offloading(node: torch.fx.Node) -> bool:
    """Whether torch has inserted ``node`` to offload an activation, or to bring one back."""
    return node.op == "call_function" and (
        node.name.startswith(_PREFIXES) or str(node.target).startswith(tuple(f"ao.{n}." for n in TRANSFERS))
    )


@cache
def tagged(operation: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The same operation, tagged as unsafe in CUDA graphs.

    >>> torch.Tag.cudagraph_unsafe in tagged(torch.ops.aten.histc.default).tags
    True
    """
    schema = operation._schema
    name = f"{schema.name.replace('::', '_')}_{schema.overload_name or 'default'}"
    arguments = str(schema).partition("(")[2]
    library = _library()
    library.define(f"{name}({arguments}", tags=(*operation.tags, torch.Tag.cudagraph_unsafe))
    library.impl(name, operation, "CompositeExplicitAutograd")
    made: Any = getattr(torch.ops, _NAMESPACE)
    return getattr(made, name).default  # type: ignore[no-any-return]


@cache
def _library() -> Any:
    kind: Any = torch.library.Library  # untyped
    return kind(_NAMESPACE, "DEF")
