"""What a tensor is beyond its memory, sizes, strides and type: what a launch carries, what it cannot, and equality.

An address says nothing of lazy bits, of layouts other than strided, of subclasses, quantizers or functorch's wrappers.
All of these are dispatch keys, so one question covers what is known today and what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.comparing import number_bits

_use_count = torch_name("_storage_Use_Count")
Bits = tuple[bool, bool]  # whether a tensor stands for the conjugate, and for the negative, of what is in its memory
PLAIN: Bits = (False, False)
_WORDS = {
    "Quantized": "a quantized tensor",
    "Nested": "a nested tensor",
    "Sparse": "a sparse tensor",
    "ZeroTensor": "a tensor of zeros without memory",
    "Named": "a tensor with names",
}


def bits_of(tensor: torch.Tensor) -> Bits:
    """Its lazy bits."""
    return tensor.is_conj(), tensor.is_neg()


def lazily(tensor: torch.Tensor, bits: Bits) -> torch.Tensor:
    """A view with these bits more, or taken away where it has them.

    >>> lazily(torch.tensor([1j]), (True, False)).is_conj()
    True
    """
    conjugated, negated = bits
    if conjugated:
        tensor = torch.ops.aten._conj.default(tensor)
    return torch.ops.aten._neg_view.default(tensor) if negated else tensor


@cache
def on_device(kind: str) -> Callable[[torch.Tensor], bool]:
    """What tells whether a tensor is on a device of some type, in a fifth of the time that its ``device.type`` takes.

    >>> on_device("cpu")(torch.ones(2)), on_device("cuda")(torch.ones(2))
    (True, False)
    """
    return attrgetter(f"is_{kind}") if kind in ("cpu", "cuda") else lambda tensor: tensor.device.type == kind


def has_memory_alone(tensor: torch.Tensor) -> bool:
    """Whether nobody but a tensor has its memory: no other one, and no node of a backward pass.

    >>> one = torch.ones(2)
    >>> has_memory_alone(one), has_memory_alone(one[:1])
    (True, False)
    """
    return _users_of(tensor) <= _users_of_one()


def _users_of(tensor: torch.Tensor) -> int:
    return int(_use_count(tensor.untyped_storage()._cdata))


@cache
def _users_of_one() -> int:
    return _users_of(torch.empty(1, device="cpu"))  # the object that asks is one


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements between the first and one past the last of a strided tensor.

    >>> extent((2, 3), (4, 1)), extent((), ()), extent((0, 3), (4, 1))
    (7, 1, 0)
    """
    last = 0
    for n, step in zip(size, stride, strict=True):
        if n == 0:
            return 0
        last += (n - 1) * step
    return last + 1


def not_carried(tensor: torch.Tensor) -> str | None:
    """What a tensor made from address, sizes, strides, type and lazy bits would lack, in words; None if nothing.

    >>> not_carried(torch.eye(2).to_sparse())
    'a sparse tensor'
    >>> not_carried(torch.ones(2).conj())
    """
    strange = torch_name("_dispatch_keys")(tensor) - _ordinary_keys(tensor.device)
    names = str(strange).partition("(")[2].rstrip(")")
    if not names and tensor.layout == torch.strided:
        return None
    known = next((words for name, words in _WORDS.items() if name in names and "Python" not in names), None)
    if known is not None:
        return known
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    return f"a tensor with the dispatch key {names}"


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The tensors inside a subclass that computes with them and has no memory of its own, as torchao's and DTensor.

    None for any other tensor; also where the subclass does not tell, by ``__tensor_flatten__``, what it has inside.
    """
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return None if flatten is None else [getattr(tensor, name) for name in flatten()[0]]


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is memory behind a tensor: subclasses may be wrappers of others.

    >>> has_memory(torch.ones(2)), has_memory(torch.ones(2).to_sparse())
    (True, False)
    """
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor.layout == torch.strided
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False
    return True


@cache
def _ordinary_keys(device: torch.device) -> Any:
    keys, kinds = torch_name("_dispatch_keys"), torch_name("DispatchKey")
    with torch.inference_mode():
        found = keys(torch.empty(0, device=device))
    with torch.inference_mode(False):
        found = found | keys(torch.empty(0, device=device))
    for lazy in (kinds.Conjugate, kinds.Negative):
        found = found.add(lazy)
    return found


def same_bits(a: Any, b: Any, *, layout: bool = False) -> bool:
    """Whether two values are equal to the last bit: NaN is itself if its payload is, and -0.0 is not 0.0.

    Tensors are compared by what they stand for, lazy bits applied; with ``layout`` strides, device and lazy bits count
    too.

    >>> same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")])), same_bits(0.0, -0.0)
    (True, False)
    >>> same_bits(torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 1j])), same_bits(torch.zeros(2), torch.zeros(2, 1))
    (True, False)
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b or (type(a) is type(b) and number_bits(a) == number_bits(b))
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    if layout and not same_layout(a, b):
        return False
    with torch.no_grad():
        return not a.numel() or torch.equal(_bytes(a), _bytes(b.to(a.device)))


def same_layout(a: Any, b: Any) -> bool:
    """Whether two tensors have the same strides and lazy bits on the same device."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return (a.stride(), a.device, *bits_of(a)) == (b.stride(), b.device, *bits_of(b))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


_PIECE = 1 << 19  # words of 8 bytes that are weighed at once
_TURN = 0x5851F42D4C957F2D  # odd, so that no bit is lost


def digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number of 64 bits for each tensor's bits: other bits have another one, but for one time in 2**60.

    It takes a few MiB however large they are, where comparing with copies takes all their memory again. Words are
    weighed by their place and added up in integers, which no order of adding changes.

    >>> a, b, c = digests([torch.ones(3), torch.ones(3), torch.tensor([1.0, 1.0, -1.0])])
    >>> a == b, a == c
    (True, False)
    """
    with torch.no_grad():
        weights: dict[torch.device, torch.Tensor] = {}
        found = []
        for tensor in tensors:
            flat = _bytes(tensor)
            if flat.device not in weights:
                longest = max(t.numel() * t.dtype.itemsize for t in tensors)
                weights[flat.device] = _weights(min(_PIECE, longest // 8 + 8), flat.device)
            found.append(_digest(flat, weights[flat.device]))
        return [int(value) for value in found]


def _digest(flat: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), 8 * _PIECE):
        piece = flat[start : start + 8 * _PIECE]
        words = piece[: piece.numel() // 8 * 8]
        words = (words.clone() if words.storage_offset() % 8 else words).view(torch.int64)
        rest = piece[words.numel() * 8 :].to(torch.int64)
        for part in (words, rest):
            total = total * _TURN + (part * weights[: part.numel()]).sum()
    return total


def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Odd numbers with nothing in common."""
    place = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _TURN
    return ((place ^ (place >> 29)) * 0x14057B7EF767814F) | 1


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one size are the same numbers in the same memory.

    >>> x = torch.ones(4)
    >>> same_place(x, x.view(2, 2).view(4)), same_place(x, x.clone())
    (True, False)
    """
    places = [(each.data_ptr(), each.dtype, each.stride(), bits_of(each)) for each in (one, other)]
    return places[0] == places[1]


def dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers lie side by side in some order, each once."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def through_pageable(target: torch.Tensor, source: torch.Tensor, non_blocking: bool, *, to_host: bool) -> bool:
    """Whether torch copies between host and GPU by way of a fresh tensor of the host: CUDA copies runs of bytes only.

    Types are converted on the device, unless the host waits; layouts are on the side that differs.
    """
    one_type = source.dtype == target.dtype
    strides = [[s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in (target, source)]
    if one_type and source.shape == target.shape and strides[0] == strides[1] and dense(source):
        return False
    if to_host:
        return not target.is_contiguous() or not (non_blocking or one_type)
    return not source.expand(target.shape).is_contiguous() or not (non_blocking or one_type)
