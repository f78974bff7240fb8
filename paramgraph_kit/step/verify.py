"""A launch beside the ungraphed step, from the same state: everything that it writes is compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.step.cells import Cell
from paramgraph_kit.trace.model import Reason

LARGE = 1 << 30  # bytes of state that are copied to the host's memory instead of the device's


@dataclass(slots=True)
class Checked:
    """What the launches of one captured step have shown."""

    verified: int = 0  # launches that were compared and were equal
    measured: None = None
    failed: Reason | None = None


class Memory:
    """Copies of all memory that a step may write."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        storages = {t.untyped_storage()._cdata: t for t in tensors if t.numel()}
        self._flat = [_flat(t) for t in storages.values()]
        self._large = sum(f.numel() for f in self._flat) > LARGE

    @torch.no_grad()
    def copies(self) -> list[torch.Tensor]:
        """Their bytes now."""
        return [f.cpu() if self._large else f.clone() for f in self._flat]

    @torch.no_grad()
    def put(self, copies: Sequence[torch.Tensor]) -> None:
        """Their bytes then."""
        for flat, copy in zip(self._flat, copies, strict=True):
            flat.copy_(copy)


@dataclass(slots=True)
class _Left:
    """What one run has left behind."""

    memory: list[torch.Tensor]
    values: list[tuple[str, Any]]  # the results and what the cells hold, tensors copied
    random: Any


class Comparison:
    """One call, made both ways."""

    def __init__(
        self,
        driver: Driver,
        cells: Sequence[Cell],
        used: Sequence[torch.Tensor],
        arguments: Sequence[torch.Tensor],
        quiet: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._driver, self._cells, self._quiet = driver, cells, quiet
        entering = [x for c in cells for x in pytree.tree_leaves(c.held()) if isinstance(x, torch.Tensor)]
        self._memory = Memory([*used, *arguments, *entering])
        self._entries = [cell.held() for cell in cells]
        self._random = driver.random_state()

    def run(self, call: Callable[[], Any], launch: Callable[[], Any]) -> tuple[Any, Reason | None, bool]:
        """(result, why the graph is given up, whether both were equal): the result is right in any case."""
        before = self._memory.copies()
        expected = self._made(call)[1]
        self._put(before)
        found, left = self._made(launch)
        if not (differing := self._differing(left, expected)):
            return found, None, True
        del found
        self._put(before)
        result, second = self._made(call)
        # Where ungraphed code differs from itself (sums in no fixed order), nothing can be said.
        if not (sure := differing - self._differing(second, expected)):
            return result, None, False
        text = f"{', '.join(sorted(sure))} differed from the ungraphed step's, which this call returned"
        return result, Reason("wrong-result", text), False

    def _put(self, before: Sequence[torch.Tensor]) -> None:
        """All as it was at the entry."""
        self._memory.put(before)
        for cell, entry in zip(self._cells, self._entries, strict=True):
            cell.holder.put(cell.key, entry)
        self._driver.set_random_state(self._random)

    def _made(self, way: Callable[[], Any]) -> tuple[Any, _Left]:
        with self._quiet():
            result = way()
        named = [(f"result {n}", x) for n, x in enumerate(pytree.tree_leaves(result))]
        named += [(cell.place, x) for cell in self._cells for x in pytree.tree_leaves(cell.held())]
        with torch.no_grad():
            values = [(name, x.detach().clone() if isinstance(x, torch.Tensor) else x) for name, x in named]
            return result, _Left(self._memory.copies(), values, self._driver.random_state())

    @staticmethod
    def _differing(found: _Left, expected: _Left) -> set[str]:
        names = {name for (name, a), (_, b) in zip(found.values, expected.values, strict=True) if not same_bits(a, b)}
        if any(not torch.equal(a, b) for a, b in zip(found.memory, expected.memory, strict=True)):
            names.add("the state")
        if not same_bits(found.random, expected.random):
            names.add("the random numbers' position")
        return names


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
