"""Where halves are rounded: CUDA's kernels compute most in float32, and some in the type that they are given.

Of the backward of tanh and of sigmoid each step is rounded, and of a running sum or product each number of it, in the
order in which threads add them [H200]. Beside those, ``gelu`` of infinity, for which the kernel of some CPUs has NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kernels import Kernel

aten: Any = torch.ops.aten
Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
HALVES = (torch.float16, torch.bfloat16)
ONE_THREAD = 30  # numbers in one row that its first thread goes through
LEAST, MOST = 4, 9  # logarithms of the threads of a block that share a row
_WIDE = (
    *("_log_softmax_backward_data", "glu", "glu_backward", "logit", "logit_backward", "prod"),
    "prod.dim_int",
)


def halves_kernels() -> dict[str, Any]:
    """By the names of their operations."""
    in_steps = {"tanh_backward": lambda grad, out: grad * (1 - out * out)}
    in_steps["sigmoid_backward"] = lambda grad, out: grad * (1 - out) * out
    found = {name: Kernel(op, _wide(op)) for name in _WIDE if (op := _overload(name))}
    found |= {name: Kernel(op, _of_halves(op, by)) for name, by in in_steps.items() if (op := _overload(name))}
    found["log_sigmoid_backward"] = Kernel(
        op := aten.log_sigmoid_backward.default, _of_halves(op, _log_sigmoid_backward)
    )
    found["gelu"] = Kernel(aten.gelu.default, _gelu)
    found["xlogy.Tensor"] = Kernel(aten.xlogy.Tensor, _both_wide(aten.xlogy))
    found["special_xlog1py"] = Kernel(aten.special_xlog1py.default, _both_wide(aten.special_xlog1py))
    plain, of_logarithms = aten._softmax.default, aten._log_softmax.default
    found["_softmax"] = Kernel(plain, _into_float(plain, plain))
    found["_log_softmax"] = Kernel(of_logarithms, _into_float(of_logarithms, _wide(of_logarithms)))
    found["clamp"] = Kernel(aten.clamp.default, _between)
    for name, by in (("cumsum", torch.add), ("cumprod", torch.mul)):
        found[name] = Kernel(op := _overload(name), _of_halves(op, _running(by)))
    return found


def running(numbers: torch.Tensor, dim: int, by: Operator) -> torch.Tensor:
    """A running sum or product as CUDA's threads round it: along the last of many rows by a tree, else one by one.

    >>> x = torch.tensor([256, 1, 1, 1, 0.5, 3], dtype=torch.bfloat16)
    >>> running(x, 0, torch.add).tolist(), x.cumsum(0).tolist()
    ([256.0, 256.0, 256.0, 256.0, 256.0, 260.0], [256.0, 256.0, 258.0, 260.0, 260.0, 262.0])
    """
    rows = numbers.movedim(dim, -1).clone()
    if dim % numbers.dim() == numbers.dim() - 1 and numbers.numel() != numbers.shape[dim]:
        _by_a_tree(rows, by)
    else:
        for n in range(1, rows.shape[-1]):
            rows[..., n] = by(rows[..., n - 1], rows[..., n])
    return rows.movedim(-1, dim)


def _by_a_tree(rows: torch.Tensor, by: Operator) -> None:
    """Sklansky's, for so many numbers at once as two for each thread; the first goes on from those before."""
    size = rows.shape[-1]
    threads = 1 << _threads(rows.numel() // size, size)
    thread = torch.arange(threads)
    for begin in range(0, size, 2 * threads):
        part = rows[..., begin : begin + 2 * threads]
        if begin:
            part[..., 0] = by(part[..., 0], rows[..., begin - 1])
        step = 1
        while step <= threads:
            at = thread // step * (2 * step) + step
            ends, starts = at + thread % step, at - 1
            there = ends < part.shape[-1]
            part[..., ends[there]] = by(part[..., ends[there]], part[..., starts[there]])
            step *= 2


def _threads(rows: int, size: int) -> int:
    apart = (size - 1).bit_length() - (rows - 1).bit_length()
    return min(max(LEAST, int((MOST + apart) / 2)), MOST)


def _running(by: Operator) -> Callable[..., torch.Tensor]:
    def run(numbers: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        one_row = numbers.dim() and numbers.numel() == numbers.shape[dim]
        if not numbers.numel() or not numbers.dim() or (one_row and numbers.numel() > ONE_THREAD):
            packet = aten.cumsum if by is torch.add else aten.cumprod
            return packet(numbers, dim, dtype=dtype)  # type: ignore[no-any-return]
        return running(numbers, dim, by)

    return run


def _log_sigmoid_backward(grad: torch.Tensor, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    z = (-wide.abs()).exp()
    slope = torch.where(wide < 0, 1 - z / (1 + z), z / (1 + z))
    return (grad.float() * slope).to(x.dtype)


def _gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    found: torch.Tensor = aten.gelu.default(x, approximate=approximate)
    return found if x.is_meta else torch.where(x == torch.inf, x, found)  # erf's for AVX-512 is NaN there


def _both_wide(op: Any) -> Callable[..., torch.Tensor]:
    """An operation of two that is computed in float32 where its result is in halves, and rounded once."""

    def run(*args: Any) -> torch.Tensor:
        kind = torch.result_type(*args)
        if kind not in HALVES:
            return op(*args)  # type: ignore[no-any-return]
        return op(*(x.float() if isinstance(x, torch.Tensor) else x for x in args)).to(kind)  # type: ignore[no-any-return]

    return run


def _into_float(op: Any, within: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """A softmax of halves that gives float32, which the CPU's does not."""

    def run(x: torch.Tensor, dim: int, into_float: bool) -> torch.Tensor:
        if not into_float or x.is_meta:
            return within(x, dim, into_float)  # type: ignore[no-any-return]
        if x.dtype is not torch.float16:
            raise RuntimeError("conversion is supported for Half type only")
        return op(x.float(), dim, False)  # type: ignore[no-any-return]

    return run


def _between(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:  # noqa: A002 - torch's names
    """Numbers below a bound alone that is NaN stay as they are."""
    if max is None and min != min:
        min = -torch.inf  # noqa: A001
    elif min is None and max != max:
        max = torch.inf  # noqa: A001
    return aten.clamp.default(x, min, max)  # type: ignore[no-any-return]


def _of_halves(op: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that is computed otherwise, given halves that stay halves."""

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if first.dtype not in HALVES or first.is_meta or kwargs.get("dtype") not in (None, first.dtype):
            return op(*args, **kwargs)
        return run(*args, **kwargs)

    return call


def _wide(op: Any) -> Callable[..., Any]:
    """An operation that computes halves in float32, and rounds what it gives."""

    def run(*args: Any, **kwargs: Any) -> Any:
        wide = [x.float() if isinstance(x, torch.Tensor) and x.dtype in HALVES else x for x in args]
        wide = [torch.float32 if isinstance(x, torch.dtype) and x in HALVES else x for x in wide]
        return op(*wide, **kwargs).to(args[0].dtype)

    return _of_halves(op, run)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")
