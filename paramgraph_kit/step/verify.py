"""A launch beside the ungraphed step, from the same state: everything that it writes is compared bit for bit."""

from __future__ import annotations

import math
import sys
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

_Key = tuple[str, int]  # the name of something that a step writes, and its number
LARGE = 1 << 30  # bytes of state that are copied to the host's memory instead of the device's
AGAIN = 6  # ungraphed runs of the step, at most, to see how far it is from itself
NOISE = 16.0  # times that far a launch may be, at most: a few runs of sums in no fixed order do not show all of them
ENOUGH = 2  # launches that were no farther: there is no more to learn


@dataclass(slots=True)
class Checked:
    """What the launches of one captured step have shown."""

    verified: int = 0  # launches that were compared and were equal
    unordered: int = 0  # launches that differed only where ungraphed steps differ among themselves, and as little
    measured: None = None
    failed: Reason | None = None

    @property
    def over(self) -> bool:
        """Whether enough launches were compared to trust the others."""
        return self.verified > 0 or self.unordered >= ENOUGH


class Memory:
    """Copies of all memory that a step may write."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        storages = {t.untyped_storage()._cdata: t for t in tensors if t.numel()}
        self._flat = [_flat(t) for t in storages.values()]
        self.dtypes = [t.dtype for t in storages.values()]
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
        if not (away := self._distances(left, expected)):
            return found, None, True
        del found
        noise: dict[_Key, float] = {}
        for _ in range(AGAIN):  # where the ungraphed step differs from itself, no bits can be asked for
            self._put(before)
            result, again = self._made(call)
            for key, far in self._distances(again, expected).items():
                noise[key] = max(far, noise.get(key, 0.0))
            sure = {name for (name, n), far in away.items() if far > NOISE * noise.get((name, n), 0.0)}
            if not sure:
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

    def _distances(self, found: _Left, expected: _Left) -> dict[_Key, float]:
        """How far apart is what differs in any bit."""
        pairs: dict[_Key, tuple[Any, Any]] = {
            (name, n): (a, b)
            for n, ((name, a), (_, b)) in enumerate(zip(found.values, expected.values, strict=True))
            if not same_bits(a, b)
        }
        pieces = zip(found.memory, expected.memory, self._memory.dtypes, strict=True)
        for n, (one, other, dtype) in enumerate(pieces):
            if not torch.equal(one, other):
                pairs["the state", n] = (_as(one, dtype), _as(other, dtype))
        if not same_bits(found.random, expected.random):
            pairs["the random numbers' position", 0] = (found.random, expected.random)
        return {key: _distance(*pair) for key, pair in pairs.items()}


def _distance(a: Any, b: Any) -> float:
    """The largest difference of two numbers at one place; infinite where they are not of a kind that has any."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape:
        return math.inf
    if not (a.is_floating_point() or a.is_complex()) or a.layout != torch.strided:
        return math.inf
    with torch.no_grad():
        unlike = ~((a == b) | (a.isnan() & b.isnan()))
        one, other = a[unlike], b[unlike]
        wide = torch.complex128 if a.is_complex() else torch.float64
        far = (one.to(wide) - other.to(wide)).abs().max().item() if len(one) else 0.0
    return max(far, sys.float_info.min) if math.isfinite(far) else math.inf


def _as(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return flat if flat.numel() % dtype.itemsize else flat.view(dtype)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
