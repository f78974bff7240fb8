"""What memory-efficient attention does otherwise under capture, read from the FX graph that has it."""

from __future__ import annotations

import torch.fx

_READS_SEEDS = ("_scaled_dot_product_efficient_attention_backward", "_efficient_attention_backward")
_SHARES_STORAGE = ("_scaled_dot_product_efficient_attention", "_efficient_attention_forward")


def host_seeds(module: torch.fx.GraphModule) -> frozenset[str]:
    """Names of the inputs that memory-efficient attention's backward takes for its random numbers.

    Its forward returns them on the host, but on the device under capture, and where its backward is not captured it
    reads them on the host: given one on the device it ends the process (torch 2.11).
    """
    return frozenset(
        each.name
        for node in module.graph.nodes
        if _name_of(node).startswith(_READS_SEEDS)
        for argument, each in zip(node.target._schema.arguments, node.args, strict=False)
        if argument.name in ("philox_seed", "philox_offset") and each.op == "placeholder"
    )


def shares_storage(module: torch.fx.GraphModule) -> bool:
    """Whether there is an attention in it whose backward looks at which tensors share a storage.

    With its tensors on one storage that backward takes another way where it is not captured.
    """
    return any(_name_of(node).startswith(_SHARES_STORAGE) for node in module.graph.nodes)


def _name_of(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))
