"""cuBLAS, cuDNN and cuSOLVER: nothing of theirs runs here, but their handles are made at the first call of a thread.

Making one allocates with cudaMalloc, so a capture whose mode forbids that fails then [H200, torch 2.11]. A handle is
its thread's until that ends, and then the next one's that needs one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from .kernels import Kernel
from .stream import forbidding

CUSOLVER = (
    "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `{call}`. If you keep seeing this error, you may use "
    "`torch.backends.cuda.preferred_linalg_library()` to try linear algebra operators with other supported backends. "
    "See https://pytorch.org/docs/stable/backends.html#torch.backends.cuda.preferred_linalg_library"
)
NO_HANDLE = {
    "cuBLAS": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuSOLVER": CUSOLVER.format(call="cusolverDnCreate(handle)"),
}

PRODUCTS = (
    *("addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "vdot"),
    *("_int_mm", "_scaled_mm", "linalg_solve_triangular", "triangular_solve"),
)
SOLVERS = (
    *("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex"),
    *("linalg_lu_solve", "cholesky", "cholesky_inverse", "_cholesky_solve_helper", "linalg_cholesky_ex"),
    *("geqrf", "linalg_householder_product", "linalg_ldl_factor_ex", "linalg_lstsq", "linalg_qr", "ormqr"),
)
# For many matrices at once these are cuBLAS's.
IN_BATCHES = ("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_free: Counter[str] = Counter()


class _Handles:
    """Those of one thread."""

    def __init__(self) -> None:
        self.of: set[str] = set()
        self.recurrent = False

    def __del__(self, free: Counter[str] = _free) -> None:
        free.update(self.of)


_thread = threading.local()


def _mine() -> _Handles:
    found: _Handles | None = getattr(_thread, "handles", None)
    if found is None:
        found = _thread.handles = _Handles()
    return found


def use(library: str) -> None:
    """Call a library on this thread, which makes a handle if it has none.

    Raises:
        RuntimeError: a capture forbids that on this thread; it is spoiled.
    """
    mine = _mine()
    if library in mine.of or mine.recurrent:
        return
    if _free[library]:
        _free[library] -= 1
    elif (capture := forbidding()) is not None:
        capture.check()
        capture.fail(900)
        raise RuntimeError(NO_HANDLE[library])
    mine.of.add(library)


def forget() -> None:
    """Have no handles on this thread, as in a fresh process."""
    _mine().of.clear()
    _free.clear()


def library_kernel(op: Any, library: str) -> Callable[..., Any]:
    """An operation that is a call of a library."""
    run = Kernel(op)
    batched = op._opname in IN_BATCHES

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if first.numel():
            use("cuBLAS" if batched and first.dim() > 2 else library)
        return run(*args, **kwargs)

    return call


def convolution_kernel(op: Any) -> Callable[..., Any]:
    """A convolution, forward or backward: cuDNN's, or a product where that is off."""
    run = Kernel(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        if args[0].numel():
            use("cuDNN" if torch.backends.cudnn.enabled else "cuBLAS")
        return run(*args, **kwargs)

    return call


def library_kernels() -> dict[str, Any]:
    """Every operation that is a call of a library, by its name."""
    aten = torch.ops.aten
    found: dict[str, Any] = {}
    for names, library in ((PRODUCTS, "cuBLAS"), (SOLVERS, "cuSOLVER")):
        for name in names:
            for each in (name, f"{name}_"):
                if hasattr(aten, each):
                    found[each] = library_kernel(getattr(aten, each).default, library)
    for name in ("convolution", "convolution_backward"):
        found[name] = convolution_kernel(getattr(aten, name).default)
    return found


def install_recurrent() -> None:
    """LSTM, GRU and RNN are cuDNN's, whose handle ``module.cuda()`` has made; here they are products."""
    for name in RECURRENT:
        setattr(torch._VF, name, _as_one(getattr(torch._VF, name)))


def _as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        mine = _mine()
        mine.recurrent, before = True, mine.recurrent
        try:
            return function(*args, **kwargs)
        finally:
            mine.recurrent = before

    return call
