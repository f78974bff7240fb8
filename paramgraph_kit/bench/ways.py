"""What is compared: workloads, and for each the ways of running it, every one in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import paramgraph_kit as pgk

NO_GRAPHS, TREES, OURS, FROZEN = "no graphs", "graph trees", "paramgraph", "frozen graph"
WHOLE = "parameterize(step, state=...)"
COMPILERS: dict[str, Callable[[Any], Any]] = {
    NO_GRAPHS: partial(pgk.compile, select="never"),
    TREES: partial(torch.compile, mode="reduce-overhead"),
    OURS: pgk.compile,
    'paramgraph, guards="dynamo"': partial(pgk.compile, guards="dynamo"),
    'paramgraph, guards="inputs"': partial(pgk.compile, guards="inputs"),
    "parameterize(model)": pgk.parameterize,
}
THREE = {name: COMPILERS[name] for name in (NO_GRAPHS, TREES, OURS)}


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Ready:
    """One way, ready to be called again and again."""

    step: Callable[[], Any]
    note: Callable[[], str] = _nothing  # what is to be told of it, once it is warm
    tokens: Callable[[], list[int]] | None = None  # what all ways must agree on


Make = Callable[[], Ready]


@dataclass(frozen=True, slots=True)
class Compared:
    """A workload; one whose ways do not fit beside one another may come twice, with some of them each time."""

    name: str
    ways: Mapping[str, Make]
    gib: float = 3.5  # of device memory that one way may need
    warm_up: int = 8  # calls before anything is measured
    tokens: int = 0  # that one call makes


def mark(way: str) -> None:
    """Tell graph trees that a step begins, as their users have to."""
    if way == TREES:
        torch.compiler.cudagraph_mark_step_begin()
