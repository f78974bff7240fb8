"""Steps of optimizers that find no gradients, though a graph of before computes some: it writes to its capture's.

Where a line behind the capture sets them to None, no call sees that they were ever there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.around_replays import gradients_nulled, keeps
from paramgraph_kit.doctor.observe.held import parameters_at
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_TEXT = "this step finds no gradient: the replay writes to those of its capture, which no parameter has by now"
_WORDS = "the same, and each `zero_grad()` behind the capture is `zero_grad(set_to_none=False)`"


class BareSteps:
    """Those of one examination."""

    def __init__(self) -> None:
        self.told: dict[tuple[CodeType, int], Failure] = {}
        self._learn: dict[int, tuple[Region, frozenset[int]]] = {}  # by graph, the parameters that have no gradient
        self._launched: dict[int, Region] = {}  # by parameter, in this call

    def learns(self, region: Region, bare: Collection[torch.Tensor]) -> None:
        """A graph of before has a backward pass, and no step; ``bare``: what it learns, and has no gradient now."""
        self._learn[id(region.graph)] = region, frozenset(map(storage_key, bare))

    def launched(self, graph: object) -> None:
        """A graph is replayed."""
        region, bare = self._learn.get(id(graph), (None, frozenset[int]()))
        if region is not None:
            self._launched |= dict.fromkeys(bare, region)

    def steps(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """step() is about to run, outside of all captures."""
        parameters = parameters_at(optimizer)
        region = next((r for p in parameters if (r := self._launched.get(storage_key(p))) is not None), None)
        if region is None or place.user is None or any(p.grad is not None for p in parameters):
            return
        if (node := nulled_behind(region.code, region.line)) is not None:
            self.told[region.code, node.lineno] = gradients_nulled(node, region.code)
        elif nulled_behind(place.user[0], 0) is None:  # else it is told there
            failure = BY_ID["gradients-rebound"].failure(_TEXT, frame := place.frame())
            line = frame.text if frame is not None else "optimizer.step()"
            self.told[place.user[0], line_of(*place.user)] = replace(failure, fix=f"before  {line}\nafter   {_WORDS}")

    def returned(self) -> None:
        """A call is over."""
        self._launched.clear()


def nulled_behind(code: CodeType, line: int) -> ast.Call | None:
    """The first call of a function, behind a line, that sets gradients to None."""
    calls = (n for n in nodes_of(code) if isinstance(n, ast.Call) and last_name(n.func) == "zero_grad")
    return next((n for n in calls if n.lineno > line and not keeps(n)), None)
