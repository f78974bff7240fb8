"""cuSOLVER on the simulated device: a call that fails in a capture is heard of by the next one [H200]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, linalg

from paramgraph_kit.driver.sim.libraries import forget

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
Solve = Callable[[Tensor], Any]

FAILING: dict[str, Solve] = {
    "eigh": linalg.eigh,
    "eigvalsh": linalg.eigvalsh,
    "eigvals": linalg.eigvals,
    "svd by QR": lambda a: linalg.svd(a, driver="gesvd"),
}
EXECUTION, INTERNAL, INVALID = (f"CUSOLVER_STATUS_{e}" for e in ("EXECUTION_FAILED", "INTERNAL_ERROR", "INVALID_VALUE"))


def _pair(a: Tensor) -> Tensor:
    return torch.stack([a, a])


def _column(a: Tensor) -> Tensor:
    return a[:, :1].clone()


# What the next one of each kind says of a failure, and of which call, on numbers and on complex ones.
TOLD: dict[str, tuple[Solve, str, str, str]] = {
    "eigh": (linalg.eigh, EXECUTION, "cusolverDnXsyevd( ", "cusolverDnXsyevd( "),
    "eigh at once": (
        lambda a: linalg.eigh(_pair(a)),
        EXECUTION,
        "cusolverDnXsyevBatched( ",
        "cusolverDnXsyevBatched( ",
    ),
    "eigvals": (linalg.eigvals, INTERNAL, "cusolverDnXgeev( handle", "cusolverDnXgeev( handle"),
    "eig": (linalg.eig, INTERNAL, "cusolverDnXgeev( handle", "cusolverDnXgeev( handle"),
    "cholesky at once": (
        lambda a: linalg.cholesky_ex(_pair(a)),
        EXECUTION,
        "cusolverDnSpotrfBatched(handle, uplo, n, A, lda, info, batchSize)",
        "cusolverDnZpotrfBatched( handle, uplo, n, reinterpret_cast<cuDoubleComplex**>(A), lda, info, batchSize)",
    ),
    "ldl_factor": (
        linalg.ldl_factor_ex,
        INTERNAL,
        "cusolverDnSsytrf(handle, uplo, n, A, lda, ipiv, work, lwork, devInfo)",
        (
            "cusolverDnZsytrf( handle, uplo, n, reinterpret_cast<cuDoubleComplex*>(A), lda, ipiv, "
            "reinterpret_cast<cuDoubleComplex*>(work), lwork, devInfo)"
        ),
    ),
    "ldl_solve": (
        lambda a: linalg.ldl_solve(a, torch.ones(2, dtype=torch.int32, device=a.device), _column(a)),
        INVALID,
        "cusolverDnXsytrs( handle",
        "cusolverDnXsytrs( handle",
    ),
    "cholesky_solve": (
        lambda a: torch.cholesky_solve(_column(a), a.tril()),
        EXECUTION,
        "cusolverDnXpotrs(handle, params, uplo, n, nrhs, dataTypeA, A, lda, dataTypeB, B, ldb, info)",
        "cusolverDnXpotrs(handle, params, uplo, n, nrhs, dataTypeA, A, lda, dataTypeB, B, ldb, info)",
    ),
    "cholesky_inverse": (torch.cholesky_inverse, EXECUTION, "cusolverDnXpotrs(handle", "cusolverDnXpotrs(handle"),
    "householder_product": (
        lambda a: linalg.householder_product(a, a[0].clone()),
        EXECUTION,
        "cusolverDnSorgqr(handle, m, n, k, A, lda, tau, work, lwork, devInfo)",
        (
            "cusolverDnZungqr( handle, m, n, k, reinterpret_cast<cuDoubleComplex*>(A), lda, "
            "reinterpret_cast<const cuDoubleComplex*>(tau), reinterpret_cast<cuDoubleComplex*>(work), lwork, devInfo)"
        ),
    ),
    "qr": (linalg.qr, EXECUTION, "cusolverDnXgeqrf( handle", "cusolverDnXgeqrf( handle"),
    "qr at once": (lambda a: linalg.qr(_pair(a)), EXECUTION, "cusolverDnSorgqr(handle", "cusolverDnZungqr( handle"),
    "qr of nothing": (lambda a: linalg.qr(a[:0]), EXECUTION, "cusolverDnXgeqrf( handle", "cusolverDnXgeqrf( handle"),
    "ormqr": (
        lambda a: torch.ormqr(a, a[0].clone(), _column(a)),
        EXECUTION,
        "cusolverDnSormqr(handle, side, trans, m, n, k, A, lda, tau, C, ldc, work, lwork, devInfo)",
        "cusolverDnZunmqr( handle, side, trans, m, n, k, reinterpret_cast<const cuDoubleComplex*>(A), lda",
    ),
    "lstsq": (lambda a: linalg.lstsq(a, _column(a)), EXECUTION, "cusolverDnXgeqrf( handle", "cusolverDnXgeqrf( handle"),
    "svd": (
        linalg.svd,
        INVALID,
        (
            "cusolverDnSgesvdjBatched( handle, jobz, m, n, A, lda, S, U, ldu, V, ldv, "
            "static_cast<float*>(dataPtr.get()), lwork, info, params, batchSize)"
        ),
        (
            "cusolverDnZgesvdjBatched( handle, jobz, m, n, reinterpret_cast<cuDoubleComplex*>(A), lda, S, "
            "reinterpret_cast<cuDoubleComplex*>(U), ldu, reinterpret_cast<cuDoubleComplex*>(V), ldv, "
            "static_cast<cuDoubleComplex*>(dataPtr.get()), lwork, info, params, batchSize)"
        ),
    ),
    "svd by QR": (
        lambda a: linalg.svd(a, driver="gesvd"),
        EXECUTION,
        "cusolverDnSgesvd( handle, jobu, jobvt, m, n, A, lda, S, U, ldu, VT, ldvt, work, lwork, rwork, info)",
        "cusolverDnZgesvd( handle, jobu, jobvt, m, n, reinterpret_cast<cuDoubleComplex*>(A), lda, S, ",
    ),
    "svd approximately": (
        lambda a: linalg.svd(_pair(a), driver="gesvda"),
        INVALID,
        "cusolverDnSgesvdaStridedBatched( handle, jobz, rank, m, n, A, lda, strideA, S, strideS, U, ldu, strideU, ",
        "cusolverDnZgesvdaStridedBatched( handle, jobz, rank, m, n, reinterpret_cast<cuDoubleComplex*>(A), lda, ",
    ),
    "cond": (linalg.cond, INVALID, "cusolverDnSgesvdjBatched( handle", "cusolverDnZgesvdjBatched( handle"),
}
# What goes on, and leaves the failure to the next one.
UNHEARD: dict[str, Solve] = {
    "inv": linalg.inv,
    "lu_factor": linalg.lu_factor,
    "det at once": lambda a: linalg.det(_pair(a)),
    "solve": lambda a: linalg.solve(a, _column(a)),
    "solve_triangular": lambda a: linalg.solve_triangular(a, _column(a), upper=True),
    "cholesky_solve at once": lambda a: torch.cholesky_solve(_pair(_column(a)), _pair(a)),
    "geqrf at once": lambda a: torch.geqrf(_pair(a)),
    "R at once": lambda a: linalg.qr(_pair(a), mode="r"),
    "eigh of nothing": lambda a: linalg.eigh(a[:0, :0]),
    "a product": lambda a: a @ a,
    "item": lambda a: a.sum().item(),
}
# What goes on, and nothing hears of the failure any more.
FORGOTTEN: dict[str, Solve] = {
    "cholesky": linalg.cholesky_ex,
    "svd of more than 32 rows": lambda a: linalg.svd(torch.eye(40, dtype=a.dtype, device=a.device)),
}


def _matrix(sim: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=dtype, device=sim)


def _failed(cuda: Any, a: Tensor, solve: Solve = linalg.eigh) -> None:
    """Let a capture fail for what cuSOLVER cannot do there, once this thread has its handle."""
    linalg.inv(a)
    with pytest.raises(torch.AcceleratorError), cuda.graph(cuda.CUDAGraph()):
        solve(a)
    cuda.set_stream(cuda.default_stream())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("name", TOLD)
def test_the_next_call_outside_fails_too(name: str, dtype: torch.dtype, sim: torch.device, cuda: Any) -> None:
    # GIVEN eigenvalues that were asked for in a capture WHEN the next call that looks for errors comes, outside
    solve, status, real, complex_ = TOLD[name]
    a = _matrix(sim, dtype)
    _failed(cuda, a)
    with pytest.raises(RuntimeError) as raised:
        solve(a)
    # THEN it fails in its own words, and the ones after it do not
    assert f"cusolver error: {status}, when calling `{complex_ if dtype.is_complex else real}" in str(raised.value)
    assert (type(raised.value) is RuntimeError, "contains NaN" in str(raised.value)) == (
        status != INVALID,
        status == INVALID,
    )
    solve(a)
    linalg.eigh(a)
    cuda.recover()


@pytest.mark.parametrize("name", FAILING)
def test_every_call_that_fails_in_a_capture_is_heard_of(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN each of those that fail there WHEN the next one comes THEN it fails, and again after one more capture
    a = _matrix(sim)
    for _ in range(2):
        _failed(cuda, a, FAILING[name])
        with pytest.raises(RuntimeError, match=f"{INTERNAL}, when calling `cusolverDnXgeev"):
            linalg.eigvals(a)
        cuda.recover()
    linalg.eigvals(a)


def test_a_later_capture_hears_of_it_and_goes_on(sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture that has failed WHEN the next call that looks for errors is in another one
    a, graph = _matrix(sim), cuda.CUDAGraph()
    _failed(cuda, a)
    with cuda.graph(graph):
        with pytest.raises(RuntimeError, match=f"{EXECUTION}, when calling `cusolverDnXpotrs"):
            torch.cholesky_inverse(a)
        found = torch.cholesky_inverse(a.tril())
    # THEN that fails in its own words, the next one does not, and the capture is none the worse
    graph.replay()
    assert found.tolist() == torch.cholesky_inverse(a.tril()).tolist()
    cuda.recover()


@pytest.mark.parametrize("name", UNHEARD)
def test_what_does_not_look_for_errors_leaves_it_to_the_next(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a failure WHEN what does not look for errors comes between THEN the next one that does fails
    a = _matrix(sim)
    _failed(cuda, a)
    UNHEARD[name](a)
    with pytest.raises(RuntimeError, match=f"{EXECUTION}, when calling `cusolverDnXsyevd"):
        linalg.eigh(a)
    cuda.recover()


@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_hides_the_failure_ends_it(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a failure WHEN what hides it comes between THEN the next one does not fail
    a = _matrix(sim)
    _failed(cuda, a)
    FORGOTTEN[name](a)
    assert linalg.eigvalsh(a).shape == (2,)
    cuda.recover()


@pytest.mark.parametrize("name", ["a thread without a handle", "ldl", "eig", "svd"])
def test_what_fails_otherwise_is_not_heard_of(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture that fails as there is no handle, or by torch's own refusal WHEN the next call comes THEN it works
    a = _matrix(sim)
    solve: Solve = {"ldl": linalg.ldl_factor_ex, "eig": linalg.eig, "svd": linalg.svd}.get(name, linalg.eigvals)
    if name == "a thread without a handle":
        forget()
    else:
        linalg.inv(a)
    with pytest.raises(RuntimeError), cuda.graph(cuda.CUDAGraph()):
        solve(a)
    cuda.set_stream(cuda.default_stream())
    assert linalg.eigvals(a).shape == (2,)
    cuda.recover()
