"""What CUDA's kernels ask of their operands, and the CPU's do not, or later: in the words of an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


def _bytes(sim: torch.device, *size: int) -> Tensor:
    return torch.ones(*size, dtype=torch.int8, device=sim)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ((2, 8), (8, 8), r"self.size\(0\) needs to be greater than 16, but got 2"),
        ((17, 6), (6, 8), r"self.size\(1\) needs to be greater than 0 and a multiple of 8, but got 6"),
        ((17, 8), (16, 8), r"self.size\(1\) needs to match mat2.size\(0\) but got 8 and 16"),
        ((17, 8), (8, 3), r"mat2.size\(1\) needs to be greater than 0 and a multiple of 8, but got 3"),
    ],
)
def test_a_product_of_bytes_has_sizes(one: Any, other: Any, words: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN activations of few rows, as of one token, in int8 WHEN they are multiplied THEN cuBLAS has no such product
    left, right = _bytes(sim, *one), _bytes(sim, *other)
    with pytest.raises(RuntimeError, match=words):
        torch._int_mm(left, right)
    # WHEN there are enough of them THEN it has
    assert torch._int_mm(_bytes(sim, 17, 8), _bytes(sim, 8, 8)).eq(8).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: torch.optim.Adam([p], fused=True), "params, grads, exp_avgs, and exp_avg_sqs must have same dtype"),
        (lambda p: torch.optim.AdamW([p], fused=True, amsgrad=True), "exp_avg_sqs, and max_exp_avg_sqs must have same"),
        (
            lambda p: torch.optim.SGD([p], momentum=0.5, fused=True),
            "restrictions[(] {params, grads, momentum_buffer_list}",
        ),
        (lambda p: torch.optim.SGD([p], fused=True), "restrictions[(]{params, grads}[)] to be true, but got false"),
    ],
)
def test_gradients_of_a_fused_optimizer_lie_as_their_parameters_do(
    make: Callable[[Tensor], torch.optim.Optimizer], words: str, sim: torch.device
) -> None:
    # GIVEN a parameter whose gradient the program has set, one number for all of it
    parameter = nn.Parameter(torch.ones(2, device=sim))
    optimizer = make(parameter)
    parameter.grad = torch.ones(1, device=sim).expand(2)
    # WHEN a fused optimizer steps THEN that is refused
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()
    # WHEN it lies as the parameter THEN it is taken
    parameter.grad = parameter.grad.contiguous()
    optimizer.step()
    assert parameter.ne(1).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x.masked_select(x[0, :2] > 0), r"The size of tensor a \(2\) must match the size of tensor b \(3\)"),
        (lambda x: x.masked_select(x), "masked_select: expected BoolTensor for mask"),
        (lambda x: torch.nonzero(x, out=torch.zeros(1, device=x.device)), "type Long as out, but got float"),
    ],
)
def test_what_is_wrong_is_told_before_anybody_waits(
    call: Callable[[Tensor], Tensor], words: str, sim: torch.device, cuda: Any
) -> None:
    # GIVEN a selection whose mask or result is wrong WHEN a capture meets it THEN it hears of that, and goes on
    x, graph = torch.ones(2, 3, device=sim), cuda.CUDAGraph()
    with cuda.graph(graph):
        with pytest.raises(RuntimeError, match=words):
            call(x)
        y = x + 1
    graph.replay()
    assert y.eq(2).all()


@pytest.mark.parametrize("factor", [torch.linalg.cholesky_ex, torch.linalg.inv_ex, torch.linalg.lu_factor_ex])
def test_who_asks_whether_a_matrix_has_a_factor_waits(factor: Any, sim: torch.device, cuda: Any) -> None:
    # GIVEN a matrix that has one, factored before WHEN a capture asks whether it has THEN that is a wait
    matrix = torch.eye(2, device=sim) * 4
    factor(matrix, check_errors=True)
    with pytest.raises(RuntimeError, match="previous error during capture"), cuda.graph(cuda.CUDAGraph()):
        factor(matrix, check_errors=True)
    # WHEN it does not ask THEN it is none
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        found = factor(matrix)
    graph.replay()
    assert found.info.item() == 0


def test_gradients_of_bags_are_divided_by_how_often_a_row_is_asked_for(sim: torch.device) -> None:
    # GIVEN bags that ask for one row twice and for another once WHEN gradients are scaled THEN each row's are one whole
    weight = torch.arange(6.0, device=sim).view(3, 2).requires_grad_()
    places, offsets = torch.tensor([0, 2, 0], device=sim), torch.tensor([0, 1], device=sim)
    torch.autograd.backward(F.embedding_bag(places, weight, offsets, mode="sum", scale_grad_by_freq=True).sum())
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (torch.uint16, [300, 0, 0, 0, 65535]),
        (torch.uint32, [300, 0, 0, 65536, 2**32 - 1]),
        (torch.uint64, [300, 0, 0, 65536, 10**10]),
    ],
)
def test_numbers_become_the_nearest_without_a_sign(kind: torch.dtype, found: list[int], sim: torch.device) -> None:
    # GIVEN numbers below zero and beyond 16 and 32 bits WHEN they lose points and signs THEN as cvt does it [H200]
    numbers = torch.tensor([300.0, -1.0, -129.0, 65536.5, 1e10], device=sim)
    assert numbers.to(kind).tolist() == found


def test_other_words_than_the_cpu_s(sim: torch.device) -> None:
    # GIVEN calls that both refuse WHEN they are made on the device THEN the words are CUDA's
    x, rows = torch.ones(3, 2, device=sim), torch.tensor([0, 2], device=sim)
    for call, kind, words in (
        (lambda: x[0].trace(), RuntimeError, "expected a matrix"),
        (lambda: x.index_select(0, rows[None]), RuntimeError, "Index is supposed to be an empty tensor or a vector"),
        (lambda: x.index_select(0, rows.float()), NotImplementedError, "index_select_out_cuda_impl"),
        (lambda: F.embedding_bag(rows, x, rows[:1] * 0, mode="sum", per_sample_weights=x[:2, 0].half()), RuntimeError,
         "expected scalar type Float but found Half"),
        (lambda: torch.sort(x[0], out=(x[0] * 1, rows.int())), RuntimeError, "long int, but got int instead"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            call()
