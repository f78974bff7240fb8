"""What cuSOLVER says: of what it fails to do in a capture, and of a later call that hears of such a failure.

A failure in a capture stays with cuSOLVER: its next call that looks for errors fails as well, in its own words, or goes
on and forgets it [H200, torch 2.11]. Factors of LU's, inverses and what is solved by them do not look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .machine import machine
from .stream import current_stream

CUSOLVER = (
    "cusolver error: CUSOLVER_STATUS_{status}, when calling `{call}`. {nan}If you keep seeing this error, you may use "
    "`torch.backends.cuda.preferred_linalg_library()` to try linear algebra operators with other supported backends. "
    "See https://pytorch.org/docs/stable/backends.html#torch.backends.cuda.preferred_linalg_library"
)
_NAN = "This error may appear if the input matrix contains NaN. "
_BUFFERS = (
    "reinterpret_cast<void*>(bufferOnDevice), workspaceInBytesOnDevice, reinterpret_cast<void*>(bufferOnHost), "
    "workspaceInBytesOnHost, info)"
)

# Calls by what they do: {a} is the type of matrices, {r} that of real numbers, {x} its letter.
CALLS = {
    "eigenvalues of one": "cusolverDnXsyevd( handle, params, jobz, uplo, n, {a}, reinterpret_cast<void*>(A), lda, {r}, "
    "reinterpret_cast<void*>(W), {a}, " + _BUFFERS,
    "eigenvalues": "cusolverDnXsyevBatched( handle, params, jobz, uplo, n, {a}, reinterpret_cast<void*>(A), lda, {r}, "
    "reinterpret_cast<void*>(W), {a}, bufferOnDevice, workspaceInBytesOnDevice, bufferOnHost, workspaceInBytesOnHost, "
    "info, batchSize)",
    "memory for any eigenvalues": "cusolverDnXgeev_bufferSize( handle, params, jobvl, jobvr, n, {a}, "
    "reinterpret_cast<const void*>(A), lda, {a}, reinterpret_cast<const void*>(W), {a}, "
    "reinterpret_cast<const void*>(VL), ldvl, {a}, reinterpret_cast<const void*>(VR), ldvr, {a}, "
    "workspaceInBytesOnDevice, workspaceInBytesOnHost)",
    "any eigenvalues": "cusolverDnXgeev( handle, params, jobvl, jobvr, n, {a}, reinterpret_cast<void*>(A), lda, {a}, "
    "reinterpret_cast<void*>(W), {a}, reinterpret_cast<void*>(VL), ldvl, {a}, reinterpret_cast<void*>(VR), ldvr, {a}, "
    + _BUFFERS,
    "qr": "cusolverDnXgeqrf( handle, params, m, n, {a}, reinterpret_cast<void*>(A), lda, {a}, "
    "reinterpret_cast<void*>(tau), {a}, " + _BUFFERS,
    "solutions by Cholesky's": "cusolverDnXpotrs(handle, params, uplo, n, nrhs, dataTypeA, A, lda, dataTypeB, B, ldb, "
    "info)",
    "solutions by LDL's": "cusolverDnXsytrs( handle, uplo, n, nrhs, datatype, a_working_ptr, lda, pivots_working_ptr, "
    "datatype, b_working_ptr, ldb, workdata_device_ptr, worksize_device, workdata_host_ptr, worksize_host, "
    "info.data_ptr<int>())",
    "ldl": "cusolverDn{x}sytrf({ }handle, uplo, n, {A}, lda, ipiv, {work}, lwork, devInfo)",
    "cholesky": "cusolverDn{x}potrfBatched({ }handle, uplo, n, {*A}, lda, info, batchSize)",
    "q": "cusolverDn{x}{or}gqr({ }handle, m, n, k, {A}, lda, {const tau}, {work}, lwork, devInfo)",
    "products by q": "cusolverDn{x}{or}mqr({ }handle, side, trans, m, n, k, {const A}, lda, {const tau}, {C}, ldc, "
    "{work}, lwork, devInfo)",
    "svd": "cusolverDn{x}gesvdjBatched( handle, jobz, m, n, {A}, lda, S, {U}, ldu, {V}, ldv, "
    "static_cast<{number}*>(dataPtr.get()), lwork, info, params, batchSize)",
    "svd by QR": "cusolverDn{x}gesvd( handle, jobu, jobvt, m, n, {A}, lda, S, {U}, ldu, {VT}, ldvt, {work}, lwork, "
    "rwork, info{ })",
    "svd approximately": "cusolverDn{x}gesvdaStridedBatched( handle, jobz, rank, m, n, {A}, lda, strideA, S, strideS, "
    "{U}, ldu, strideU, {V}, ldv, strideV, {work}, lwork, info, h_R_nrmF, batchSize )",
}
_POINTERS = ("A", "C", "U", "V", "VT", "work", "const A", "const tau", "*A")

# How those end that fail to do so, and the calls whose failures are said to be of matrices that have no numbers.
FAILED, INTERNAL, INVALID = "EXECUTION_FAILED", "INTERNAL_ERROR", "INVALID_VALUE"
_ENDS = {
    **dict.fromkeys(CALLS, FAILED),
    **dict.fromkeys(("memory for any eigenvalues", "any eigenvalues", "ldl"), INTERNAL),
    **dict.fromkeys(("svd", "svd approximately", "solutions by LDL's"), INVALID),
}

# Those that cuSOLVER fails to do in a capture, in the call that it names.
UNSOLVED = {
    "_linalg_eigh": "eigenvalues of one",
    "_linalg_eigvals": "memory for any eigenvalues",
    "linalg_ldl_factor_ex": "ldl",
    "_linalg_svd": "svd by QR",
}

ONE_BY_ONE = 32  # rows and columns of matrices up to which svd takes many at once
_FORGETS = ""  # of an operation whose call has no error for it, and leaves none


def _of_one(call: str | None, several: str | None = None) -> Callable[..., str | None]:
    return lambda matrix, *_, **__: several if matrix.dim() > 2 else call


def _svd(matrix: torch.Tensor, *_: Any, driver: str | None = None, **__: Any) -> str:
    if driver == "gesvda":
        return "svd approximately"
    if driver == "gesvd":
        return "svd by QR"
    return "svd" if max(matrix.shape[-2:]) <= ONE_BY_ONE else _FORGETS


def _qr(matrix: torch.Tensor, mode: str = "reduced", **_: Any) -> str | None:
    return ("q" if mode != "r" else None) if matrix.dim() > 2 else "qr"


# Which call of an operation looks for errors first, of its operands; None for none.
_LOOKS: dict[str, Callable[..., str | None]] = {
    "_linalg_eigh": _of_one("eigenvalues of one", "eigenvalues"),
    **dict.fromkeys(("_linalg_eigvals", "linalg_eig"), _of_one("any eigenvalues", "any eigenvalues")),
    **dict.fromkeys(("cholesky", "linalg_cholesky_ex"), _of_one(_FORGETS, "cholesky")),
    **dict.fromkeys(("_cholesky_solve_helper", "cholesky_inverse"), _of_one("solutions by Cholesky's")),
    "linalg_ldl_factor_ex": _of_one("ldl", "ldl"),
    "linalg_ldl_solve": _of_one("solutions by LDL's", "solutions by LDL's"),
    "linalg_householder_product": _of_one("q", "q"),
    "ormqr": _of_one("products by q", "products by q"),
    **dict.fromkeys(("geqrf", "linalg_lstsq"), _of_one("qr")),
    "linalg_qr": _qr,
    "_linalg_svd": _svd,
}


def solver_error(what: str, dtype: torch.dtype, status: str = "") -> RuntimeError:
    """What torch raises of a call that has failed, on matrices of a type."""
    status = status or _ENDS[what]
    text = CUSOLVER.format(status=status, call=_of_type(CALLS[what], dtype), nan=_NAN if status == INVALID else "")
    if status == INVALID:
        return torch.linalg.LinAlgError(text)  # type: ignore[attr-defined,no-any-return]  # torch leaves it out
    return RuntimeError(text)


def _of_type(call: str, dtype: torch.dtype) -> str:
    """A call as it is for matrices of a type: pointers to complex numbers are cast."""
    wide, whole = dtype in (torch.float64, torch.complex128), dtype.is_complex
    bits, number = (64, "double") if wide else (32, "float")
    number = (f"cu{'Double' if wide else ''}Complex") if whole else number
    parts = {"a": f"CUDA_{'C' if whole else 'R'}_{bits}F", "r": f"CUDA_R_{bits}F", "number": number}
    parts |= {"x": ("DZ" if wide else "SC")[whole], "or": "un" if whole else "or", " ": " " if whole else ""}
    for pointer in _POINTERS:
        name, to = pointer.split()[-1].lstrip("*"), "**" if pointer[0] == "*" else "*"
        kind = f"const {number}" if pointer.startswith("const") else number
        parts[pointer] = f"reinterpret_cast<{kind}{to}>({name})" if whole else name
    for part, text in parts.items():
        call = call.replace(f"{{{part}}}", text)
    return call


def tell_late(operation: str, args: Any, kwargs: Any) -> None:
    """Raise what cuSOLVER says of a call, where one in a capture has failed before; another capture goes on."""
    m, capture = machine(), current_stream().capture
    if not m.solver_failed or operation not in _LOOKS or (capture is not None and capture.invalid):
        return
    what = _LOOKS[operation](*args, **kwargs)
    if what is None or not (args[0].numel() or what == "qr"):  # that is asked even of no numbers
        return
    m.solver_failed = False
    if what != _FORGETS:
        raise solver_error(what, args[0].dtype)
