"""What the replay of a graph may write, and no operation shows: it is kept ahead of each call of who can replay one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import is_a, makes_graphs, tensors_in
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.restore.keeper import storage_key

MOST_BYTES = 1 << 26  # of one tensor: a cache of a server's is larger, and is written by what is seen, too


def written_by_replays(state: HostState, own: list[Any], device: str) -> Iterator[torch.Tensor]:
    """Tensors in reach of a function that can name a graph: what its optimizers step, and buffers of some size.

    Weights that no optimizer has are as large as memory may be, and nobody writes them. ``own`` is what the user's
    own objects hold now.
    """
    if not any(map(makes_graphs, _kinds_in(own))):
        return
    held = [each for holder in state.holders for each in _parts(holder.read())]
    optimizers = [each for each in held if is_a(each, torch.optim.Optimizer)]
    stepped = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for tensor in (t for t in state.tensors if t.device.type == device and storage_key(t)):
        if id(tensor) in stepped and tensor.grad is not None:
            yield tensor.grad
        is_small = not is_a(tensor, torch.nn.Parameter) and tensor.untyped_storage().nbytes() <= MOST_BYTES
        if id(tensor) in stepped or is_small:
            yield tensor


def read_by_captures(regions: Iterable[Region], device: str) -> Iterator[torch.Tensor]:
    """The same of graphs captured before, whose lines name what the function that replays them may not."""
    values = [use.value() for region in regions if region.values is not None for use in region.values.uses]
    optimizers = [each for each in values if is_a(each, torch.optim.Optimizer)]
    parameters = [p for each in optimizers for group in each.param_groups for p in group["params"]]
    made = [t for each in optimizers for kept in each.state.values() for t in tensors_in(list(kept.values()))]
    modules = [each for each in values if is_a(each, torch.nn.Module)]
    weights = [p for module in modules for p in module.parameters()]
    gradients = [p.grad for p in (*parameters, *weights) if p.grad is not None]
    held = [each for each in values if is_a(each, torch.Tensor) and not is_a(each, torch.nn.Parameter)]
    held += [b for module in modules for b in module.buffers()]
    small = [each for each in held if each.untyped_storage().nbytes() <= MOST_BYTES]
    yield from (t for t in (*parameters, *made, *gradients, *small) if t.device.type == device)


def _kinds_in(own: list[Any]) -> set[type]:
    """The kinds of what values hold, which are few: a model holds thousands of values."""
    kinds = set[type]()
    for value in own:
        kind = type(value)
        kinds.update(map(type, value.values() if kind is dict else value if kind in (list, tuple) else (value,)))
    return kinds if tuple not in kinds else {type(each) for value in own for each in _parts(value)}


def _parts(value: Any) -> Iterator[Any]:
    """What a holder holds, with what tuples in it do: ``graphs[n] = graph, x, y``."""
    kind = type(value)  # what answers as it likes is left alone
    for part in value.values() if kind is dict else value if kind in (list, tuple) else [value]:
        yield from part if type(part) is tuple else (part,)
