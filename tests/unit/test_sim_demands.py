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


def test_segments_are_asked_for_their_name_and_place_first(sim: torch.device, cuda: Any) -> None:
    # GIVEN sums of segments WHEN their lengths lie beside offsets THEN nobody waits for them
    x, lengths, offsets = torch.arange(4.0, device=sim), *(torch.tensor(n, device=sim) for n in ([1, 3], [0, 1, 4]))
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = torch.segment_reduce(x, "sum", lengths=lengths, offsets=offsets)
    graph.replay()
    assert y.tolist() == [0, 6]
    # WHEN the name is none, lengths are on the host, or numbers are whole THEN the words are CUDA's
    for call, words in (
        (lambda: torch.segment_reduce(x, "median", lengths=lengths), "reduce argument must be either"),
        (lambda: torch.segment_reduce(x, "sum", lengths=lengths.cpu(), unsafe=True), "Expected data.get_device"),
        (lambda: torch.segment_reduce(x.long(), "sum", lengths=lengths, unsafe=True), '"segment_reduce_cuda" not'),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=words):
            call()  # type: ignore[no-untyped-call]  # torch has no types for it
    with pytest.raises(RuntimeError, match="reduce argument"), cuda.graph(cuda.CUDAGraph()):
        torch.segment_reduce(x * 2, "median", lengths=lengths)


def test_scales_of_channels_are_counted_before_anybody_waits(sim: torch.device, cuda: Any) -> None:
    # GIVEN three channels WHEN they are quantized by two scales in a capture THEN that is what is wrong
    x, scale, zero = torch.ones(3, device=sim), torch.ones(2, device=sim), torch.zeros(2, dtype=torch.int, device=sim)
    with pytest.raises(RuntimeError, match="scale and zero-point are not consistent"), cuda.graph(cuda.CUDAGraph()):
        torch.fake_quantize_per_channel_affine(x * 2, scale, zero, 0, -8, 7)
    # WHEN by as many as there are THEN the host waits for the smallest zero point
    with pytest.raises(RuntimeError, match="previous error during capture"), cuda.graph(cuda.CUDAGraph()):
        torch.fake_quantize_per_channel_affine(x[:2], scale, zero, 0, -8, 7)


def test_a_padding_mask_of_another_length(sim: torch.device) -> None:
    # GIVEN attention in evaluation WHEN the mask has fewer places than there are THEN the words are CUDA's
    x, attention = torch.ones(1, 3, 4, device=sim), nn.MultiheadAttention(4, 2, batch_first=True).to(sim).eval()
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).to(sim).eval()
    mask = torch.zeros(1, 3, dtype=torch.bool, device=sim)
    words = r"mask: \[1, 2\] input: \[1, 2, 3, 3\]"
    with torch.no_grad():
        with pytest.raises(RuntimeError, match=words):
            attention(x, x, x, key_padding_mask=mask[:, :2])
        with pytest.raises(RuntimeError, match=words):
            layer(x, src_key_padding_mask=mask[:, :2])
        # WHEN as many THEN both run
        assert attention(x, x, x, key_padding_mask=mask)[0].shape == layer(x, src_key_padding_mask=mask).shape


def test_what_kernels_of_cuda_have_and_the_cpu_s_do_not(sim: torch.device) -> None:
    # GIVEN halves, and bounds that are NaN WHEN given to operations that CUDA has otherwise THEN as an H200 does it
    x, nan = torch.tensor([1.0, 2.0, 3.5], device=sim), float("nan")
    assert torch.ops.aten._softmax(x.half(), 0, True).dtype == torch.float32
    assert torch.xlogy(x.half(), x.half()).tolist() == [0, 1.38671875, 4.3828125]
    assert torch.xlogy(x.half(), 2.0).dtype == torch.float16
    assert x.clamp(min=nan).tolist() == x.clamp(max=nan).tolist() == x.tolist()
    assert all(each != each for each in (*x.clamp(min=nan, max=2).tolist(), *x.clamp_min(nan).tolist()))
    values, places = torch.mode(x, out=(torch.zeros((), device=sim), torch.zeros((), dtype=torch.int64, device=sim)))
    assert (values.item(), places.item()) == (1, 0)
    found = torch.ops.aten._native_batch_norm_legit.no_stats(x.view(3, 1), None, None, True, 0.1, 1e-5)
    assert found[0].sum().abs() < 1e-6
    # and refused in CUDA's words, of halves before a handle is asked for
    for call, words in (
        (lambda: x.half().histc(3), "HalfTensor is not supported"),
        (lambda: torch.linalg.det(x[:1, None].half()), '"lu_factor_cusolver" not implemented for'),
        (lambda: F.pdist(x[:, None].half()), '"pdist_cuda" not implemented for'),
        (lambda: F.cross_entropy(x.expand(2, 3), x.expand(2, 3)[:, :2]), "multi-target not supported"),
        (lambda: F.cross_entropy(x.expand(2, 3), x[:2]), "cuda_kernel_2d_index"),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=words):
            call()
