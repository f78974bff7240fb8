"""What a launcher is told about its partition, once and whole: the backend makes it, nobody finishes it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from paramgraph_kit.trace.model import Frame, Reason

Run = Callable[[list[Any]], Any]  # empties the list of its inputs and returns a tuple or a list
Lines = Mapping[str, Sequence[Frame | None]]  # by kernel, the user's line behind each of its launches in order
Modules = Mapping[str, Sequence[str | None]]  # the same, with the path of the user's module


@dataclass(frozen=True, slots=True)
class PartitionCode:
    """One compiled partition: its code, and what the code alone does not tell."""

    name: str  # "forward 0 partition 1"
    run: Run
    constants: tuple[torch.Tensor, ...] = ()  # tensors that it reads without being given them
    # Whether sizes, strides and lazy bits may differ between calls, with no number among the inputs to tell.
    layouts: bool = False
    host_seeds: tuple[int, ...] = ()  # inputs that ungraphed code reads on the host and a graph on the device
    # Inputs that no guard has looked at, the backward's tangents: their lazy bits may change from call to call.
    unguarded: tuple[int, ...] = ()
    together: frozenset[int] = frozenset()  # outputs that live and die as one: those saved for the backward
    # Inputs that ``run`` copies where they are aligned less than its kernels assume; known once it has run.
    aligned: Callable[[], Sequence[int]] = tuple
    lines: Lines = field(default_factory=lambda: MappingProxyType({}))
    modules: Modules = field(default_factory=lambda: MappingProxyType({}))
    names: tuple[str, ...] = ()  # what the user calls each input, "" where nobody knows
    results: tuple[str, ...] = ()  # and each result
    sources: Callable[[], Mapping[str, str]] = dict  # the text of each kernel, once it is compiled
    # Asked after a failed capture: code with launchers of its own that leaves out what failed; None if there is none.
    recut: Callable[[BaseException], Run | None] = lambda error: None
    refused: Reason | None = None  # why no graph may take it, where that is known before it has run
