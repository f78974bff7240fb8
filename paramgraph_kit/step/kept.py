"""Gradients that a launch writes over again as long as nobody but their parameters holds them.

Ungraphed code frees each gradient and makes a new one of the same size; nobody can tell that from the same one, written
anew, unless somebody still holds it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import le
from typing import Any

import torch

from paramgraph_kit.capture.pair import ALIGNMENT, InputSpec, alignment_of
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name

# Where torch does not tell, a gradient that only C++ holds is written over; autograd notices, as of any write.
_tensor_uses: Callable[[Any], int] = getattr(torch.Tensor, "_use_count", sys.getrefcount)


class Kept:
    """The gradients of some parameters, written by every launch; all graphs of a step that leave such share them."""

    def __init__(self, driver: Driver, specs: Sequence[InputSpec]) -> None:
        self._driver, self.specs = driver, list(specs)
        self.tensors: list[torch.Tensor] = []
        self.addresses: tuple[int, ...] = ()
        self._storages: list[torch.UntypedStorage] = []  # held: what is counted must not be gone
        self._handles: list[int] = []
        self._storage_uses = torch_name("_storage_Use_Count")
        self._most, self._alone = _references(graded=True), _references(graded=False)
        self._short: set[int] = set()  # tensors that lie on less memory than is needed by now

    def grow(self, specs: Sequence[InputSpec]) -> None:
        """Let a graph that leaves gradients of these layouts write as much behind each as it does."""
        for n, (mine, other) in enumerate(zip(self.specs, specs, strict=True)):
            if other.nbytes > mine.nbytes:
                self.specs[n] = other
                self._short.add(n)

    def free(self, parameters: Sequence[torch.Tensor] | None = None) -> tuple[tuple[int, ...], bool]:
        """The tensors' addresses, and whether any that somebody holds or has let lie elsewhere was replaced.

        ``parameters``: theirs, where some may have other gradients by now; None where all have these.
        """
        if not self.specs:
            return (), False
        if not self.tensors:
            # The largest first: in the pieces of memory that these leave, smaller ones find room.
            order = sorted(range(len(self.specs)), key=lambda n: -self.specs[n].nbytes)
            made = {n: self._make(self.specs[n]) for n in order}
            for n in range(len(self.specs)):
                self._put(n, made.pop(n))
            self._short.clear()
            return self.addresses, True
        native = checks() if parameters is None and not self._short else None
        if native is not None and native.unheld(self.tensors, self._storages, self._handles, *_uses(native)):
            return self.addresses, False
        bad, self._short = self._short, set()
        # What its parameter does not hold any more, somebody else may hold instead.
        limits = [self._most] * len(self.specs)
        if parameters is not None:
            # A zip that outlives its loop holds the last pair, and with it the last tensor.
            limits = [self._most if p.grad is t else self._alone for p, t in zip(parameters, self.tensors, strict=True)]
        references, storage_references, uses, storage_uses = map(list, zip(*limits, strict=True))
        # Whoever gave a tensor another storage has let go of the one that is counted here.
        if (found := list(map(self._storage_uses, self._handles))) != storage_uses:
            bad |= {n for n, (a, b) in enumerate(zip(found, storage_uses, strict=True)) if a != b}
        for count, held, most in (
            (sys.getrefcount, self.tensors, references),
            (sys.getrefcount, self._storages, storage_references),
            (_tensor_uses, self.tensors, uses),
        ):
            if (found := list(map(count, held))) != most and not all(map(le, found, most)):
                bad |= {n for n, (a, b) in enumerate(zip(found, most, strict=True)) if a > b}
        for n in bad:
            self._put(n, self._make(self.specs[n]))
        return self.addresses, bool(bad)

    def forget(self) -> None:
        """Hold none: whoever has them frees them."""
        self.tensors, self.addresses, self._storages, self._handles = [], (), [], []

    def _put(self, number: int, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.tensors[number : number + 1] = [tensor]
        address = self._driver.address_of(tensor)
        assert alignment_of(address) == ALIGNMENT, "a new tensor lies as a captured one does"
        self.addresses = (*self.addresses[:number], address, *self.addresses[number + 1 :])
        self._storages[number : number + 1] = [storage]
        self._handles[number : number + 1] = [storage._cdata]

    def _make(self, spec: InputSpec) -> torch.Tensor:
        """A gradient, and behind it what else a launch writes of its allocation."""
        own = extent(spec.size, spec.stride)
        if (whole := -(-spec.nbytes // spec.dtype.itemsize)) <= own:
            return self._driver.empty_strided(spec.size, spec.stride, spec.dtype)
        flat = self._driver.empty_strided((whole,), (1,), spec.dtype)
        return self._driver.reinterpret(flat, spec.size, spec.stride, 0)


@contextmanager
def _example(graded: bool) -> Iterator[tuple[list[Any], list[Any], list[int]]]:
    """A gradient that one list holds, and if ``graded`` its parameter; its storage, also held, and that's address."""
    with torch.inference_mode(False):
        parameter = torch.nn.Parameter(torch.empty((), device="cpu"))
        parameter.grad = torch.empty((), device="cpu")
        held: list[Any] = [parameter.grad]
        if not graded:
            parameter.grad = None
        storages = [held[0].untyped_storage()]
        yield held, storages, [storages[0]._cdata]


@cache
def _references(*, graded: bool) -> tuple[int, int, int, int]:
    """How often such a gradient is referred to, as ``free`` counts."""
    with _example(graded) as (held, storages, handles):
        (references,), (storage_references,) = (list(map(sys.getrefcount, each)) for each in (held, storages))
        (uses,), (storage_uses,) = list(map(_tensor_uses, held)), list(map(torch_name("_storage_Use_Count"), handles))
    return references, storage_references, uses, storage_uses


@cache
def _uses(native: Any) -> tuple[int, int, int, int]:
    """The same, as C++ counts."""
    with _example(True) as (held, storages, handles):
        found: tuple[int, int, int, int] = native.uses(held, storages, handles)[0]
    return found
