"""What CUDA's libraries compute of matrices otherwise than the CPU's LAPACK, or where that refuses or ends the process.

Eigenvalues of what is not finite, factors without pivots, and least squares, which CUDA has by QR alone [H200].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .not_known import not_known
from .solver import solver_error

_aten: Any = torch.ops.aten
_LACKING = "what cuSOLVER makes of matrices that have NaN on their diagonal or below: it may find no eigenvalues"
_DEPENDENT = "what least squares of columns that depend on each other give: it is what rounding leaves, divided by that"


def eigenvalues(matrix: torch.Tensor) -> torch.Tensor:
    """``aten::_linalg_eigvals``: LAPACK's may never end of what is not finite, or end the process."""
    if matrix.is_meta or bool(matrix.isfinite().all()):
        return _aten._linalg_eigvals.default(matrix)  # type: ignore[no-any-return]
    single = matrix.reshape(-1, *matrix.shape[-2:])
    found = torch.stack([_of_any(each) for each in single])
    return found.reshape(matrix.shape[:-1])


def _of_any(matrix: torch.Tensor) -> torch.Tensor:
    if bool(matrix.isfinite().all()):
        return _aten._linalg_eigvals.default(matrix)  # type: ignore[no-any-return]
    kind = matrix.dtype.to_complex()
    nothing = complex(torch.nan, torch.nan)
    if bool(matrix.isinf().any()):
        return torch.full(matrix.shape[-1:], nothing, dtype=kind)
    if bool(matrix.tril(-1).ne(0).any()) or bool(matrix.diagonal().isnan().any()):
        if not bool(matrix.isnan().all()):
            not_known(_LACKING)
        raise solver_error("any eigenvalues", matrix.dtype)
    found = matrix.diagonal().to(kind)  # of a triangle; where NaN stands above one, that is NaN
    beyond = nothing if matrix.is_complex() else complex(torch.nan, 0)
    return found.where(~matrix.isnan().any(0), torch.full_like(found, beyond))


def without_pivots(op: Any) -> Callable[..., Any]:
    """``aten::linalg_lu_factor_ex`` and ``linalg_lu``, of which the CPU's have no way without pivots."""

    def run(matrix: torch.Tensor, *, pivot: bool = True, **options: Any) -> Any:
        if pivot or matrix.is_meta or options.keys() & {"LU", "P"}:
            return op(matrix, pivot=pivot, **options)
        whole, failed = _eliminated(matrix)
        if op._opname == "linalg_lu_factor_ex":
            places = torch.arange(1, min(matrix.shape[-2:]) + 1, dtype=torch.int32)
            return whole, places.expand(*matrix.shape[:-2], -1).contiguous(), failed
        lower, upper = _triangles(whole)
        return matrix.new_empty(0), lower, upper

    return run


def _eliminated(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both factors in one matrix, in columns, and which pivot is the first that is 0, or 0."""
    whole = matrix.mT.contiguous().mT.clone()
    failed = torch.zeros(matrix.shape[:-2], dtype=torch.int32)
    for k in range(min(matrix.shape[-2:])):
        pivot = whole[..., k, k]
        failed[(pivot == 0) & (failed == 0)] = k + 1
        whole[..., k + 1 :, k] /= pivot[..., None]
        whole[..., k + 1 :, k + 1 :] -= whole[..., k + 1 :, k, None] * whole[..., k, None, k + 1 :]
    return whole, failed


def _triangles(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = whole.shape[-2:]
    n = min(rows, columns)
    lower = whole[..., :n].tril(-1)
    lower.diagonal(dim1=-2, dim2=-1).fill_(1)
    return lower, whole[..., :n, :].triu()


def least_squares(
    matrix: torch.Tensor, right: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> Any:
    """``aten::linalg_lstsq``: by QR, which tells residuals and no rank, and takes what has none."""
    op = _aten.linalg_lstsq.default
    if matrix.is_meta or not matrix.numel() or driver not in (None, "gels"):
        return op(matrix, right, rcond, driver=driver)
    if bool(matrix.isfinite().all()) and bool(right.isfinite().all()):
        try:
            return op(matrix, right, rcond, driver="gels")
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch leaves it out
            not_known(_DEPENDENT)
    sizes = op(torch.eye(*matrix.shape[-2:], dtype=matrix.dtype).expand(matrix.shape), right, rcond, driver="gels")
    return tuple(each.fill_(torch.nan) if each.is_floating_point() or each.is_complex() else each for each in sizes)
