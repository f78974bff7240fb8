"""Torch's operator database: its operators, their samples, and the samples' tensors anywhere in a device's memory.

The database imports ``expecttest``: where it is not installed, a wheel of it on PYTHONPATH is enough.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

Tensor = torch.Tensor

HOST_ARGUMENTS = ("tensor_split",)  # whose indices have to be on the CPU
DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64, torch.bool)


@cache
def operators() -> dict[str, Any]:
    """Every operator by its name, with its variant; in the database's order.

    >>> "fft_ifft" in operators()
    True
    """
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.formatted_name: op for op in op_db}


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one call."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    host_arguments: bool = False  # whether all but the first argument stay on the host, on every device

    def tensors(self) -> list[Tensor]:
        """Its tensors, in order."""
        return [x for x in tree_leaves((self.input, self.args, self.kwargs)) if isinstance(x, Tensor)]

    def on(self, device: torch.device) -> Sample:
        """A copy in fresh memory of ``device``: layouts, shared memory, lazy bits and all."""
        moved = Mover(device)
        value = tree_map_only(Tensor, moved, self.input)
        rest = (self.args, dict(self.kwargs))
        given = (value, *(rest if self.host_arguments else tree_map_only(Tensor, moved, rest)))
        value, args, kwargs = tree_map_only((torch.device, str), lambda x: _elsewhere(x, device), given)
        return Sample(value, tuple(args), kwargs, self.host_arguments)


def _elsewhere(place: Any, device: torch.device) -> Any:
    """A sample that names the CPU as a device means the device under test."""
    named = place.type if isinstance(place, torch.device) else place
    return device if re.fullmatch(r"cpu(:\d+)?", named) else place


def restrided(sample: Sample) -> Sample:
    """The same numbers with other strides: channels last for images, column by column for everything else."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def other(x: Tensor) -> Tensor:
        if x.layout is not torch.strided or x.dim() < 2 or x.is_conj() or x.is_neg():
            return x
        with torch.no_grad():
            turned = x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x.mT.contiguous().mT
        return turned.detach().requires_grad_(x.requires_grad)

    value, args, kwargs = tree_map_only(Tensor, other, (sample.input, sample.args, sample.kwargs))
    return replace(sample, input=value, args=args, kwargs=kwargs)


def spread(sample: Sample) -> Sample:
    """The same numbers in every second element of memory that begins one element late: nothing is aligned."""

    def other(x: Tensor) -> Tensor:
        if x.layout is not torch.strided or x.is_conj() or x.is_neg() or x.is_quantized:
            return x
        with torch.no_grad():
            wide = torch.zeros((*x.shape, 2), dtype=x.dtype, device=x.device)
            wide[..., 1] = x
        return wide[..., 1].detach().requires_grad_(x.requires_grad)

    value, args, kwargs = tree_map_only(Tensor, other, (sample.input, sample.args, sample.kwargs))
    return replace(sample, input=value, args=args, kwargs=kwargs)


class Mover:
    """Copies tensors to a device; what shares a storage on the host shares one there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._storages: dict[int, Tensor] = {}

    def all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of tensors, in order."""
        return [self(tensor) for tensor in tensors]

    def __call__(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return tensor.detach().to(self.device).requires_grad_(tensor.requires_grad)
        with torch.no_grad():
            storage = tensor.untyped_storage()
            whole = self._storages.get(storage.data_ptr())
            if whole is None or not storage.nbytes():
                raw = torch.empty(0, dtype=torch.uint8).set_(storage)
                whole = self._storages[storage.data_ptr()] = raw.to(self.device, copy=True)
            view = torch.empty(0, dtype=tensor.dtype, device=self.device)
            view.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
            if tensor.is_conj():
                view = torch.conj(view)
            if tensor.is_neg():
                view = torch._neg_view(view)
        return view.requires_grad_(tensor.requires_grad)


def samples(op: Any, dtype: torch.dtype, count: int, *, gradients: bool = False, seed: int = 0) -> list[Sample]:
    """The first ``count`` samples of an operator on the host, the same for the same seed."""
    _seed_everything(seed)
    # Not ``op.sample_inputs``, which walks the stack for the test that called it.
    found = islice(op.sample_inputs_func(op, "cpu", dtype, gradients), count)
    host = op.name in HOST_ARGUMENTS
    return [Sample(s.input, tuple(s.args), dict(s.kwargs), host) for s in found]


def pairs(op: Any, dtype: torch.dtype, count: int, *, gradients: bool = False) -> Iterator[tuple[Sample, Sample]]:
    """Samples twice: with two sets of values where another seed changes values only, otherwise the same twice."""
    first = samples(op, dtype, count, gradients=gradients)
    second = samples(op, dtype, count, gradients=gradients, seed=1)
    for sample, other in zip_longest(first, second[: len(first)]):
        yield sample, (other if other is not None and _shape(sample) == _shape(other) else sample)


def _seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _shape(sample: Sample) -> list[str]:
    return [
        str((x.shape, x.stride(), x.dtype, x.storage_offset())) if isinstance(x, Tensor) and x.layout is torch.strided
        else repr(x)
        for x in tree_leaves((sample.input, sample.args, sample.kwargs))
    ]  # fmt: skip


def difference(got: Any, expected: Any, *, layouts: bool = True, exact: bool = True) -> str:
    """What is unlike between two results, in a few words; "" where nothing is.

    Equal means: of one structure, types, shapes, strides and lazy bits, and bit for bit the same numbers (a NaN is
    a NaN). ``layouts=False`` leaves strides and lazy bits out, ``exact=False`` allows rounding.
    """
    one, other = tree_leaves(got), tree_leaves(expected)
    if len(one) != len(other):
        return f"{len(one)} results instead of {len(other)}"
    return next((found for a, b in zip(one, other, strict=True) if (found := _unlike(a, b, layouts, exact))), "")


def _unlike(a: Any, b: Any, layouts: bool, exact: bool) -> str:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        return "" if same else f"{a!r} instead of {b!r}"[:160]
    for what in ("shape", "dtype", "layout"):
        if getattr(a, what) != getattr(b, what):
            return f"{what} {getattr(a, what)} instead of {getattr(b, what)}"
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    elif layouts:
        if _strides(a) != _strides(b):
            return f"strides {a.stride()} instead of {b.stride()} of shape {tuple(a.shape)}"
        bits = [(t.is_conj(), t.is_neg()) for t in (a, b)]
        if bits[0] != bits[1]:
            return f"conjugate and negative bits {bits[0]} instead of {bits[1]}"
    return _values(flat(a), flat(b), exact)


def flat(tensor: Tensor) -> Tensor:
    """Its numbers on the host, real ones, one after the other."""
    tensor = tensor.detach()
    flat = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor).reshape(-1)
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _strides(tensor: Tensor) -> Sequence[int]:
    """Only strides of dimensions that have somewhere to step to matter."""
    return (
        [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1] if tensor.numel() else []
    )


def _values(a: Tensor, b: Tensor, exact: bool) -> str:
    if not exact and a.is_floating_point():
        largest = b.double().nan_to_num(posinf=0, neginf=0).abs().max().item() if b.numel() else 0.0
        atol = max(1e-4, 2 * torch.finfo(b.dtype).eps * largest)  # where terms cancel, rounding is that of the terms
        close = torch.isclose(
            a.double(), b.double(), rtol=1e-2 if a.dtype.itemsize < 4 else 1e-4, atol=atol, equal_nan=True
        )
        wrong = ~close
    else:
        wrong = a.view(torch.uint8) != b.view(torch.uint8)
        wrong = wrong.view(a.numel(), a.element_size()).any(1) if a.numel() else wrong
        wrong = wrong & ~(a.isnan() & b.isnan())
    if not wrong.any():
        return ""
    by = (a.double() - b.double()).abs().max().item()
    return f"{int(wrong.sum())} of {a.numel()} numbers differ, by up to {by:.3g}"
