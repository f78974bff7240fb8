"""What a launcher is told about the region that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paramgraph_kit.trace.model import Frame


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """One graphed region of a compiled graph; indices count the region's own inputs.

    ``static_input_idxs`` are parameters, buffers and constants: their addresses rarely change.
    """

    graph: str  # "forward 0", "backward 0", "inference 0"
    partition: int  # index of the region within its graph
    is_backward: bool
    is_inference: bool
    device: torch.device
    operations: tuple[str, ...]
    kernels: int
    static_input_idxs: tuple[int, ...] = ()
    mutated_input_idxs: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()  # (output, input) that share memory
    frames: tuple[Frame, ...] = ()
    random: bool = False
    donatable: tuple[int, ...] = ()  # inputs that may die with the call


def saved_activations(is_backward: bool, names: Sequence[str]) -> tuple[int, ...]:
    """Which inputs of a backward graph were saved for it alone, by AOTAutograd's names.

    Incoming gradients ("tangents") are left out: another node of the autograd graph may be given the same tensor.

    >>> saved_activations(True, ["primals_1", "mm", "tangents_1"])
    (1,)
    """
    if not is_backward:
        return ()
    return tuple(i for i, name in enumerate(names) if not name.startswith(("primals", "tangents", "partition_")))
