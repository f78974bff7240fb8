"""States of other values than those that a function begins with: of zeros six steps may show nothing.

A step without arguments leaves zeros as they are, whichever of two buffers it reads; of ones, and of two states that
are equal, no trial tells which was used. So these are filled for some steps, of the original and of rewritten lines,
with what may stand there: positive below one for zeros, and no larger than they were for what is all one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.rewrite.proving.proof import Arguments, Prover
from paramgraph_kit.rewrite.proving.results import tensors_in

STEPS = 4
MOST = 2**22  # elements of a tensor that is filled
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Filling:
    """Other values for the states of a function that are all one number, or what others are, and for such inputs.

    Args:
        prover: runs the function.
        below_zero: fill zeros with negative numbers, too, and whole numbers: an index may be none then.
    """

    def __init__(self, prover: Prover, *, below_zero: bool = False) -> None:
        self._below_zero = below_zero
        self._states = list(self._blind(prover))
        self._held = _held_by(prover) & {id(tensor) for tensor in self._states}
        self._inputs = [number for number, each in enumerate(tree_leaves(prover.inputs)) if self._is_one(each)]

    def __bool__(self) -> bool:
        """Whether anything is filled."""
        return bool(self._states or self._inputs)

    def is_held_by(self, prover: Prover) -> bool:
        """Whether a function has these states still: rewritten lines may have others, as what was made on the host."""
        return self._held <= _held_by(prover)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts the states hold these values."""
        kept = [(flat, flat.clone()) for flat in map(_memory, self._states)]
        try:
            generator = torch.Generator().manual_seed(977)
            for tensor in self._states:
                values = self._other(tensor.detach().cpu().resolve_conj().resolve_neg(), generator)
                with torch.no_grad(), torch.inference_mode(False):
                    _again(tensor).copy_(values)
            yield
        finally:
            for flat, before in kept:
                with torch.no_grad():
                    flat.copy_(before)

    def inputs(self, step: int, given: Arguments) -> Arguments:
        """The arguments of a step, with other values in each for what is all one number."""
        generator = torch.Generator().manual_seed(step)
        number = iter(range(len(tree_leaves(given))))

        def one(value: Any) -> Any:
            if next(number) not in self._inputs or not isinstance(value, torch.Tensor):
                return value
            values = self._other(value.detach().cpu(), generator)
            return values.to(value.device, value.dtype).requires_grad_(value.requires_grad)

        changed: Arguments = tree_map(one, given)
        return changed

    def _blind(self, prover: Prover) -> Iterator[torch.Tensor]:
        given = {storage_key(each) for each in tree_leaves(prover.inputs) if isinstance(each, torch.Tensor)}
        seen, known = {*given, 0}, list[torch.Tensor]()
        for tensor in prover.state.tensors:
            if not _can_be_filled(tensor) or (key := storage_key(tensor)) in seen:
                continue
            seen.add(key)
            if self._is_one(tensor):
                yield tensor
            elif tensor.is_floating_point():
                kind = (tensor.shape, tensor.device, tensor.dtype)
                alike = (each for each in known if (each.shape, each.device, each.dtype) == kind)
                if any(torch.equal(each, tensor.detach()) for each in alike):
                    yield tensor
                known.append(tensor.detach())

    def _is_one(self, value: Any) -> bool:
        """Whether a tensor is all one number, and may have others."""
        if not isinstance(value, torch.Tensor) or not _can_be_filled(value):
            return False
        plain = value.detach().cpu().flatten()
        first = plain[0]
        if not bool(first.isfinite()) or (plain.numel() == 1 and bool(first != 0)):
            return False
        whole = not (plain.is_floating_point() or plain.is_complex())
        if whole and (plain.numel() == 1 or not self._below_zero) and plain.dtype is not torch.bool:
            return False  # a count, or what may be an index
        return bool((plain == first).all())

    def _other(self, plain: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        def drawn() -> torch.Tensor:
            return torch.rand(plain.shape, generator=generator, device="cpu", dtype=torch.float64)

        if plain.dtype is torch.bool:
            return drawn() < 1 / 2
        if not (plain.is_floating_point() or plain.is_complex()):
            return plain + (drawn() < 1 / 2).to(plain.dtype)
        zeros = not bool(plain.count_nonzero())
        if zeros and plain.is_complex():
            return torch.complex(drawn(), drawn() - 1 / 2).to(plain.dtype)
        values = plain * (1 - drawn() / 2)
        if zeros:
            values = 2 * drawn() - 1 if self._below_zero else drawn()
        return values.to(plain.dtype)


def _held_by(prover: Prover) -> set[int]:
    return {id(tensor) for tensor in tensors_in(prover.state.kept)}


def _can_be_filled(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested
    own = strided and type(tensor) in _PLAIN and 0 < tensor.numel() <= MOST
    return own and all(stride or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All memory that a tensor has, which is written so past its version: a loss of before may need that."""
    with torch.no_grad(), torch.inference_mode(False):
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _again(tensor: torch.Tensor) -> torch.Tensor:
    place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*place)


def fillings(prover: Prover, *, anything: bool) -> dict[str, Filling]:
    """How a function's states may be filled, by what is said of it; ``anything``: where an index may be none."""
    found = {"with states that are not all alike": Filling(prover)}
    if anything:
        found["with states that are not all alike, some below zero"] = Filling(prover, below_zero=True)
    return {name: each for name, each in found.items() if each}
