"""Autocast around a call: in which types its backward works, which a trace has to know before anybody runs it.

Eager's backward casts where autocast is on around ``backward()``, which torch advises against. It is traced with
autocast off; what would be computed in another type with autocast on is not sure.
"""

from __future__ import annotations

import torch
import torch.fx

from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.nodes import tensors_in, value_of
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

OFF = "backward_pass_autocast"  # a switch of AOTAutograd's, which traces the backward as the forward without it
# Of CUDA's lists what a traced backward is made of; sums are added up in float32 with or without autocast.
_LOWER = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "addr", "convolution"})
_FLOAT32 = frozenset({"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
                      "rsqrt", "sinh", "tan", "pow", "softplus", "cumsum", "cumprod", "prod", "norm", "logsumexp",
                      "dist", "renorm"})  # fmt: skip


def without_casts() -> dict[str, str]:
    """What lets AOTAutograd trace a backward as it runs where autocast is off, as it is around ``backward()``."""
    return {OFF: "off"} if hasattr(torch_name("functorch_config"), OFF) else {}


def cast_to() -> torch.dtype | None:
    """The type that autocast takes now on the device, None where it is off."""
    kind = driver().device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def refuse_casts(joint: torch.fx.GraphModule, lower: torch.dtype | None) -> None:
    """Raise RefusedError where a backward comes to other numbers with autocast on, as it was around the call."""
    if lower is None:
        return
    for node in joint.graph.nodes:
        if node.meta.get("partitioner_tag") == "is_backward" and _is_cast(node, lower):
            name = str(node.target)
            text = (
                f"autocast is on around the call, and whether it is on around backward() decides in which type {name}"
            )
            raise RefusedError(Reason("not-traceable", f"{text} works there: open autocast in the function"))


def _is_cast(node: torch.fx.Node, lower: torch.dtype) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.rpartition("::")[2]
    types = {x.dtype for source in node.all_input_nodes for x in tensors_in(value_of(source))}
    floats = {dtype for dtype in types if dtype.is_floating_point and dtype != torch.float64}
    return bool(name in _LOWER and floats - {lower}) or bool(name in _FLOAT32 and floats - {torch.float32})
