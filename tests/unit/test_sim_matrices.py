"""Matrices that the CPU's LAPACK refuses, or ends the process of: computed or told as an H200 did."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import linalg

from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.not_known import NotKnownWarning

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor
NAN, INF = float("nan"), float("inf")
EYE = torch.eye(2)


@pytest.fixture
def sim() -> torch.device:
    """The simulated device."""
    return device()


def _triangle(sim: torch.device, corner: float) -> Tensor:
    return torch.tensor([[2.0, corner], [0.0, 3.0]], device=sim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_eigenvalues_of_what_is_not_finite_end_no_process(sim: torch.device, dtype: torch.dtype) -> None:
    # GIVEN matrices of which one number is none, or is infinite WHEN eigenvalues are asked for, of one and of several
    nothing, endless = (linalg.eigvals(_triangle(sim, each).to(dtype)).cpu() for each in (NAN, INF))
    several = linalg.eigvals(torch.stack([_triangle(sim, 1.0), _triangle(sim, NAN)]).to(dtype)).cpu()
    # THEN the one of the column above which it stands is none, or all, and other matrices have theirs
    assert nothing[0] == 2
    assert nothing.isnan().tolist() == [False, True]
    assert endless.isnan().all()
    assert several.real[0].tolist() == [2.0, 3.0]
    assert several.isnan().tolist() == [[False, False], [False, True]]


def test_eigenvalues_of_no_numbers_at_all_are_not_found(sim: torch.device) -> None:
    # GIVEN a matrix of NaN WHEN its eigenvalues are asked for THEN cuSOLVER says so, and the next call is as ever
    with pytest.raises(RuntimeError, match="CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnXgeev"):
        linalg.eigvals(_triangle(sim, 1.0) * NAN)
    assert linalg.eigvals(_triangle(sim, 1.0)).real.tolist() == [2.0, 3.0]


def test_what_nobody_knows_of_eigenvalues_is_said(sim: torch.device) -> None:
    # GIVEN NaN on the diagonal WHEN eigenvalues are asked for THEN that the outcome is not known is said
    with pytest.warns(NotKnownWarning, match="cuSOLVER"), pytest.raises(RuntimeError, match="INTERNAL_ERROR"):
        linalg.eigvals(torch.tensor([[NAN, 1.0], [0.0, 3.0]], device=sim))


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 3), (4, 3, 3)])
def test_factors_without_pivots_are_those_of_the_matrix(sim: torch.device, sizes: tuple[int, ...]) -> None:
    # GIVEN a matrix with a large diagonal WHEN it is factored without pivots
    torch.manual_seed(0)
    a = torch.rand(sizes) + 4 * torch.eye(*sizes[-2:])
    _, lower, upper = linalg.lu(a.to(sim), pivot=False)
    whole, pivots = linalg.lu_factor(a.to(sim), pivot=False)
    # THEN they give it again, no row changed its place, and both ways give the same
    assert torch.allclose((lower @ upper).cpu(), a, atol=1e-5)
    n = min(sizes[-2:])
    assert pivots.cpu().eq(torch.arange(1, n + 1)).all()
    assert torch.equal(whole[..., :n, :].triu(), upper)


def test_factors_without_pivots_tell_the_first_that_is_zero(sim: torch.device) -> None:
    # GIVEN a matrix whose first pivot is 0 WHEN it is factored without others THEN it is told which one that is
    assert linalg.lu_factor_ex((EYE - 1).to(sim), pivot=False)[2].item() == 1
    assert linalg.lu_factor_ex(EYE.to(sim), pivot=False)[2].item() == 0


def test_factors_without_pivots_are_captured(sim: torch.device) -> None:
    # GIVEN factors asked for in a capture WHEN it is replayed with other numbers THEN they are of those
    cuda: Any = twin()
    a, graph = (EYE * 2).to(sim), cuda.CUDAGraph()
    linalg.lu_factor(a)
    with cuda.graph(graph):
        found = linalg.lu_factor_ex(a, pivot=False)[0]
    a.copy_(torch.tensor([[2.0, 1.0], [4.0, 5.0]]))
    graph.replay()
    assert found.tolist() == [[2.0, 1.0], [2.0, 3.0]]


def test_least_squares_are_those_of_qr(sim: torch.device) -> None:
    # GIVEN more rows than columns WHEN least squares are asked for THEN their residuals are told, and no rank
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]]), torch.ones(3, 1)
    found, known = linalg.lstsq(a.to(sim), b.to(sim)), linalg.lstsq(a, b, driver="gels")
    assert torch.allclose(found.solution.cpu(), known.solution)
    assert torch.allclose(found.residuals.cpu(), known.residuals)
    assert found.residuals.shape == (1,)
    assert not found.rank.numel()


def test_least_squares_of_what_is_not_finite_are_none(sim: torch.device) -> None:
    # GIVEN a matrix with NaN WHEN least squares are asked for THEN they are NaN, and nothing is raised
    assert linalg.lstsq(_triangle(sim, NAN), EYE.to(sim)).solution.isnan().all()


def test_least_squares_of_columns_that_depend_on_each_other_are_not_known(sim: torch.device) -> None:
    # GIVEN columns of one kind WHEN least squares are asked for THEN that nobody knows their outcome is said
    with pytest.warns(NotKnownWarning, match="least squares"):
        linalg.lstsq(torch.ones(3, 2, device=sim), torch.ones(3, 1, device=sim))


WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a triangle": (lambda a: linalg.eigvalsh(a, UPLO="X"), "Expected UPLO argument to be 'L' or 'U', but got X"),
    "a driver": (lambda a: linalg.svd(a, driver="x"), "torch.linalg.svd: unknown svd driver x in svd_cusolver"),
    "no squares": (lambda a: linalg.matrix_exp(a[:1]), "linalg.matrix_exp: A must be batches of square matrices"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_before_a_capture_is_spoiled(sim: torch.device, name: str) -> None:
    # GIVEN a call that torch refuses by its arguments WHEN it is made, eagerly and in a capture
    call, text = WRONG[name]
    cuda: Any = twin()
    a = EYE.to(sim)
    linalg.eigvalsh(a)
    for captured in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty graph
            if captured:
                with cuda.graph(cuda.CUDAGraph()), pytest.raises(RuntimeError, match=text):
                    call(a)
            else:
                with pytest.raises(RuntimeError, match=text):
                    call(a)
    # THEN it says so, and the capture goes on
