"""Numbers with a point made whole as CUDA's ``cvt`` does: what does not fit becomes the nearest that does.

The CPU has one number for all of them. What is no number is 0 for CUDA where neither type has 64 bits, and else the
least (PTX ISA, cvt). Types of less than 32 bits get what is left of a wider one (an H100 did so).
"""

from __future__ import annotations

from typing import Any

import torch

from .not_known import not_known

_WHOLE = (torch.int32, torch.int64)
_BY = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.int64}  # first made a number of these
_UNSIGNED = {torch.uint16: 32, torch.uint32: 32, torch.uint64: 64}  # and the bits of what they are first made
_NARROW = 32
_TINY = (torch.float8_e4m3fn, torch.float8_e5m2)


def convert(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy, with the device's conversion.

    >>> target = torch.zeros(4, dtype=torch.int32)
    >>> convert(target, torch.tensor([3e9, -3e9, torch.nan, 2.5]))
    >>> target.tolist()
    [2147483647, -2147483648, 0, 2]
    """
    if target.dtype in _UNSIGNED and source.is_floating_point():
        source = _without_sign(source, _UNSIGNED[target.dtype])
    if target.dtype in _BY and source.is_floating_point():
        whole = torch.empty(source.shape, dtype=_BY[target.dtype])
        convert(whole, source)
        source = whole
    target.copy_(source)
    points = target.dtype in _TINY and source.dtype not in (*_TINY, torch.bool)
    if points and (source.abs() > torch.finfo(target.dtype).max).any():
        not_known("whether what is beyond 8 bits with a point becomes NaN or the largest: torch 2.11 and 2.13 differ")
    if target.dtype not in _WHOLE or not source.is_floating_point():
        return
    bounds = torch.iinfo(target.dtype)
    fits = (source < float(bounds.max)) & (source >= float(bounds.min))
    if fits.all():
        return
    source, fits = source.expand(target.shape), fits.expand(target.shape)
    narrow = target.dtype is torch.int32 and source.dtype is not torch.float64
    target[~fits & (source > 0)] = bounds.max
    target[~fits & (source < 0)] = bounds.min
    target[source.isnan()] = 0 if narrow else bounds.min


def _without_sign(source: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest number of so many bits that has no sign; fewer are left of one of 32."""
    wide, middle = source.double(), 2.0 ** (bits - 1)
    found = torch.where(wide < middle, wide, wide - 2 * middle).clamp(-middle, middle).long()
    found[wide >= 2 * middle] = -1
    found[wide < 0] = 0
    found[wide.isnan()] = 0 if bits == _NARROW and source.dtype is not torch.float64 else -int(middle)
    return found.view(torch.uint64) if bits > _NARROW else found & (2**bits - 1)


def require_fit(dtype: torch.dtype, value: Any) -> None:
    """Raise torch's RuntimeError for a number beyond a type; its way of filling one place alone lets some through."""
    torch.empty(2, dtype=dtype, device="cpu").fill_(value)
