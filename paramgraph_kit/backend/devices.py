"""A module that was left on another device is a mistake worth an error; work beside it on the host is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from paramgraph_kit.trace.errors import DeviceMismatchError

_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")


def check_devices(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], device: torch.device) -> None:
    """Refuse a graph with a module's parameters in which nothing at all is on the device that graphs are made on.

    A graph without parameters, or one that touches the device, is none of our business: what is elsewhere runs
    ungraphed, and the report says why.

    Raises:
        DeviceMismatchError: the module was never moved to the device.
    """
    # What the graph holds itself is no member: Dynamo keeps an optimizer's step there, which is on the CPU by design.
    members: list[tuple[str, torch.Tensor]] = []
    seen: list[torch.Tensor] = [*gm.parameters(), *gm.buffers()]
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    for node, value in zip(placeholders, example_inputs, strict=False):
        if isinstance(value, torch.Tensor):
            seen.append(value)
            if name := _member_name(node):
                members.append((name, value))
    if not members or any(t.device.type == device.type for t in [*seen, *_made(gm)]):
        return
    name, tensor = members[0]
    raise DeviceMismatchError(
        f"{name!r} of the compiled module is on {tensor.device}, but graphs are made on {device}: "
        "move model and inputs with .to(paramgraph_kit.device()) first"
    )


def _member_name(node: torch.fx.Node) -> str:
    """``layers.0.weight`` of a placeholder that is a module's parameter or buffer; "" for any other."""
    source: Any = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return ".".join(_MEMBER.findall(str(name() if callable(name) else name)))


def _made(gm: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, torch.Tensor):
                yield one
