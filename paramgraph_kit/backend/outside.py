"""Make Inductor cut where it would not: it cuts at operations with a tag, so these get a name of their own with it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.fx

from paramgraph_kit.partition.host_reads import host_read

_NAMESPACE = "paramgraph_kit_outside"


def keep_outside(module: torch.fx.GraphModule) -> None:
    """Let no partition hold an operation that cannot be captured, whatever Inductor knows of it; in place."""
    changed = [node for node in module.graph.nodes if host_read(node) is not None]
    for node in changed:
        node.target = tagged(node.target)
    if changed:
        module.recompile()


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
