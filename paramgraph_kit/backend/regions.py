"""What a launcher is told about the region that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    together: frozenset[int] = frozenset()  # outputs that are saved for the backward and nothing else


def saved_only(results: Sequence[Any], returned: int, outputs: Sequence[Any]) -> frozenset[int]:
    """Positions among a region's ``outputs`` that its graph saves for the backward and gives to nobody else.

    ``results`` are what the graph returns: first ``returned`` for its caller, then what is saved.

    >>> sorted(saved_only(["loss", "loss", "h", "x"], 1, ["h", "loss", "x"]))
    [0, 2]
    """
    saved = set(results[returned:]) - set(results[:returned])
    return frozenset(k for k, output in enumerate(outputs) if output in saved)
