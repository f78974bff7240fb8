"""Numbers compared bit for bit. torch and numpy are not imported: whoever passes their tensors has them."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from paramgraph_kit.trace.errors import ParamgraphError
from paramgraph_kit.trace.proof import Proof


def compare(label: str, got: Any, expected: Any) -> Proof:
    """See ``model.Trace.compare``.

    >>> compare("nan is nan", float("nan"), float("nan")).equal
    True
    """
    tensors = values = differing = 0
    largest: float | None = 0.0
    for where, a, b in _pairs(label, got, expected):
        count, wrong, by = _tensors(where, a, b) if hasattr(a, "shape") or hasattr(b, "shape") else _scalars(a, b)
        tensors += 1
        values += count
        differing += wrong
        if wrong:
            largest = None if by is None or largest is None else max(largest, by)
    return Proof(label, tensors, values, differing, largest)


def _pairs(where: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if list(a) != list(b):
            raise ParamgraphError(f"compare: {where} has the keys {list(a)}, but {list(b)} are expected: pass the same")
        for key in a:
            yield from _pairs(f"{where}[{key!r}]", a[key], b[key])
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            raise ParamgraphError(f"compare: {where} has {len(a)} items, but {len(b)} are expected: pass the same")
        for n, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _pairs(f"{where}[{n}]", one, other)
    else:
        yield where, a, b


def _scalars(a: Any, b: Any) -> tuple[int, int, float | None]:
    if type(a) is not type(b) or not isinstance(a, (bool, int, float, complex)):
        raise ParamgraphError(
            f"compare: a {type(a).__name__} with a {type(b).__name__}: pass tensors or numbers of the same type"
        )
    if number_bits(a) == number_bits(b):
        return 1, 0, 0.0
    return 1, 1, _finite(a - b)


def number_bits(x: Any) -> Any:
    """What tells numbers apart that compare equal, 0.0 and -0.0, and finds a NaN again."""
    if isinstance(x, complex):
        return struct.pack("<2d", x.real, x.imag)
    return struct.pack("<d", x) if isinstance(x, float) else x


def _finite(difference: Any) -> float | None:
    size = float(abs(difference))
    return size if math.isfinite(size) else None


def _tensors(where: str, a: Any, b: Any) -> tuple[int, int, float | None]:
    """(values, how many differ in any bit, by how much at most) of two tensors or arrays."""
    torch = sys.modules.get("torch")
    for x in (a, b):
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise ParamgraphError(
                f"compare: {where} is a {type(x).__name__} where the other has a tensor: pass the same"
            )
    if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
        one, other = (f"{tuple(x.shape)} of {x.dtype}" for x in (a, b))
        raise ParamgraphError(f"compare: {where} is {one}, but {other} is expected: pass tensors of one shape and type")
    if torch is None or not isinstance(a, torch.Tensor):
        return _arrays(a, b)
    with torch.no_grad():
        one, other = (x.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1) for x in (a, b))
        count, width = one.numel(), one.element_size()
        if not count:
            return 0, 0, 0.0
        wrong = (one.view(torch.uint8) != other.view(torch.uint8)).view(count, width).any(dim=1)
        differing = int(wrong.sum())
        if not differing:
            return count, 0, 0.0
        wide = torch.complex128 if one.is_complex() else torch.float64
        return count, differing, _finite((one[wrong].to(wide) - other[wrong].to(wide)).abs().max().item())


def _arrays(a: Any, b: Any) -> tuple[int, int, float | None]:
    import numpy as np

    one, other = (np.ascontiguousarray(x).reshape(-1) for x in (a, b))
    if not one.size:
        return 0, 0, 0.0
    raw = [x.view(np.uint8).reshape(x.size, x.itemsize) for x in (one, other)]
    wrong = (raw[0] != raw[1]).any(axis=1)
    if not wrong.any():
        return int(one.size), 0, 0.0
    wide = np.complex128 if np.iscomplexobj(one) else np.float64
    with np.errstate(all="ignore"):
        by = np.abs(one[wrong].astype(wide) - other[wrong].astype(wide)).max()
    return int(one.size), int(wrong.sum()), _finite(by)
