"""What the user calls the memory of a captured step: what it is given, what it keeps, and the state that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from paramgraph_kit.backend.allocations import tensor_name
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.launch.launcher import Called
from paramgraph_kit.step.cells import Cell
from paramgraph_kit.step.observe import Observation

Names = Mapping[int, tuple[str, torch.Tensor]]  # by id: name and tensor


def called_in(
    driver: Driver,
    arguments: Sequence[torch.Tensor],
    seen: Observation,
    cells: Sequence[Cell],
    keep: Sequence[int],
    outputs: int,
    used: Sequence[torch.Tensor],
    state: Names,
) -> Called:
    """The names of what a launch takes, gives and addresses, in the order in which it does."""
    reached = seen.before.reach.tensors
    inputs = [reached[id(x)][0] if id(x) in reached else "" for x in arguments]
    entering = [cell.place for cell in cells for _ in cell.reads]
    results = [""] * outputs
    for cell in cells:
        for number in cell.exits:
            if number is not None:
                results[number] = cell.place
    names = {key: name for key, (name, _) in state.items()} | _of_optimizers(seen, state)
    held = [(driver.address_of(t), t.numel() * t.element_size(), tensor_name(names[id(t)], t)) for t in used]
    return Called((*inputs, *entering, *(results[n] for n in keep)), tuple(results), tuple(sorted(held)))


def _of_optimizers(seen: Observation, state: Names) -> dict[int, str]:
    """What an optimizer keeps for a parameter, whose place has the parameter itself in it."""
    found: dict[int, str] = {}
    for optimizer in (x for x in seen.before.reach.objects if isinstance(x, torch.optim.Optimizer)):
        for parameter, kept in optimizer.state.items():
            if id(parameter) in state and isinstance(kept, dict):
                of = state[id(parameter)][0]
                found |= {id(x): f"{key} of {of}" for key, x in kept.items() if isinstance(x, torch.Tensor)}
    return found
