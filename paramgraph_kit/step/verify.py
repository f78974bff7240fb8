"""A launch beside the ungraphed step, from the same state: everything that it writes is compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.spread import Apart, beyond, distance, only_rounded
from paramgraph_kit.driver.tensors import digests, same_bits
from paramgraph_kit.step.cells import Cell
from paramgraph_kit.step.observe import here
from paramgraph_kit.trace.model import Reason

_Key = tuple[str, int]  # the name of something that a step writes, and its number
LARGE = 16 << 20  # bytes of state that are copied to the host's memory instead of the device's
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
    """All memory that a step may write."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        storages = {t.untyped_storage()._cdata: t for t in tensors if t.numel()}
        self.flat = [_flat(t) for t in storages.values()]
        self.dtypes = [t.dtype for t in storages.values()]
        self._large = sum(f.numel() for f in self.flat) > LARGE

    @torch.no_grad()
    def copies(self) -> list[torch.Tensor]:
        """Its bytes now."""
        return [f.cpu() if self._large else f.clone() for f in self.flat]

    @torch.no_grad()
    def put(self, copies: Sequence[torch.Tensor]) -> None:
        """Its bytes then."""
        for flat, copy in zip(self.flat, copies, strict=True):
            flat.copy_(copy)


_Named = list[tuple[str, Any]]


@dataclass(slots=True)
class Left:
    """What one run has left behind: the state's memory, results and what the cells hold, tensors copied."""

    memory: list[torch.Tensor]
    values: _Named
    random: Any


@dataclass(slots=True)
class _Bits:
    """The same in a few numbers: a launch that is right needs no copies, whatever the step holds."""

    tensors: list[int]
    values: list[tuple[str, Any]]
    random: Any

    def same(self, other: _Bits) -> bool:
        """Whether two runs have left the same."""
        return (
            self.tensors == other.tensors
            and len(self.values) == len(other.values)
            and all(a == b and same_bits(x, y) for (a, x), (b, y) in zip(self.values, other.values, strict=True))
            and same_bits(self.random, other.random)
        )


class Comparison:
    """One call, made both ways."""

    def __init__(
        self,
        driver: Driver,
        cells: Sequence[Cell],
        replaced: Sequence[Cell],
        used: Sequence[torch.Tensor],
        arguments: Sequence[torch.Tensor],
        quiet: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """``replaced`` are cells whose entry no run reads: what they hold is let go, as without a graph."""
        self._driver, self._cells, self._replaced, self._quiet = driver, cells, replaced, quiet
        entering = [x for c in cells for x in pytree.tree_leaves(c.held()) if isinstance(x, torch.Tensor)]
        self._memory = Memory([*used, *arguments, *entering])
        self._entries = [cell.held() for cell in cells]
        self._random = driver.random_state()

    def run(self, call: Callable[[], Any], launch: Callable[[], Any]) -> tuple[Any, Reason | None, bool]:
        """(result, why the graph is given up, whether both were equal): the result is right in any case."""
        before = self._memory.copies()
        expected = self._bits(self._made(call))
        self._put(before)
        found = self._made(launch)
        if self._bits(found).same(expected):
            return found, None, True
        left = self._left(found)
        del found
        self._put(before)
        result = self._made(call)
        reference = self._left(result)

        def again() -> dict[_Key, Apart]:
            nonlocal result
            del result
            self._put(before)
            result = self._made(call)
            return self._distances(self._left(result), reference)

        away = self._distances(left, reference)
        sure = beyond(away, again)
        if sure and only_rounded(away):
            del result
            self._put(before)
            with here():  # as captured: of nodes that another backward pass has made, the thread decides the order
                result = self._made(call)
            if not self._distances(left, self._left(result)):
                return result, None, False
        if not sure:
            return result, None, False
        names = ", ".join(sorted({name for name, _ in sure}))
        text = f"{names} differed from the ungraphed step's, which this call returned"
        return result, Reason("wrong-result", text), False

    def _put(self, before: Sequence[torch.Tensor]) -> None:
        """All as it was at the entry."""
        self._memory.put(before)
        for cell, entry in zip(self._cells, self._entries, strict=True):
            cell.holder.put(cell.key, entry)
        self._driver.set_random_state(self._random)

    def _made(self, way: Callable[[], Any]) -> Any:
        with self._quiet():
            return way()

    def _named(self, result: Any) -> _Named:
        named = [(f"result {n}", x) for n, x in enumerate(pytree.tree_leaves(result))]
        cells = (*self._replaced, *self._cells)
        return named + [(cell.place, x) for cell in cells for x in pytree.tree_leaves(cell.held())]

    def _left(self, result: Any) -> Left:
        """Copies of everything, on the host."""
        with torch.no_grad():
            values = [(n, x.detach().cpu() if isinstance(x, torch.Tensor) else x) for n, x in self._named(result)]
            return Left([f.cpu() for f in self._memory.flat], values, self._driver.random_state())

    def _bits(self, result: Any) -> _Bits:
        named = self._named(result)
        tensors = [x for _, x in named if isinstance(x, torch.Tensor)]
        values = [(n, (x.shape, x.dtype, x.layout) if isinstance(x, torch.Tensor) else x) for n, x in named]
        return _Bits(digests([*self._memory.flat, *tensors]), values, self._driver.random_state())

    def _distances(self, found: Left, expected: Left) -> dict[_Key, Apart]:
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
        return {key: distance(*pair) for key, pair in pairs.items()}


def _as(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return flat if flat.numel() % dtype.itemsize else flat.view(dtype)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.tensor([], dtype=torch.uint8, device=tensor.device).set_(storage)
