"""What memory-efficient attention does otherwise under capture, read from the FX graph that has it."""

from __future__ import annotations

import torch.fx

from paramgraph_kit.partition.nodes import storage_keys, tensors_in, value_of

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


def on_memory_of_their_own(module: torch.fx.GraphModule) -> frozenset[int]:
    """Positions among a graph's results of what memory-efficient attention's queries, keys and values may lie in.

    Its backward may ask which of these share a storage, and take another way where they do and nothing is captured.
    Whatever may be compiled to the same memory counts: what one tensor is made of alone, in either direction.
    """
    found: set[torch.fx.Node] = set()
    stack = [
        each
        for node in module.graph.nodes
        if _name_of(node).startswith(_SHARES_STORAGE)
        for each in node.args[:3]
        if isinstance(each, torch.fx.Node)
    ]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += _sources(node) if len(_sources(node)) == 1 else []
            stack += [user for user in node.users if len(_sources(user)) == 1]
    keys = {key for node in found for key in storage_keys(node)}
    results = next(iter(reversed(module.graph.nodes))).args[0]
    return frozenset(
        k
        for k, result in enumerate(results if isinstance(results, (list, tuple)) else [results])
        if isinstance(result, torch.fx.Node) and (result in found or storage_keys(result) & keys)
    )


def _sources(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that an operation takes; the graph's output is none."""
    if node.op == "output":
        return []
    return [each for each in node.all_input_nodes if any(True for _ in tensors_in(value_of(each)))]


def _name_of(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))
