"""Types that CUDA's kernels take and the CPU's do not, or the other way round, and what is said of them [H200]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paramgraph_kit.driver.select import device

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]

Call = Callable[[torch.Tensor], Any]
UNSIGNED, TINY = (torch.uint16, torch.uint32, torch.uint64), (torch.float8_e4m3fn, torch.float8_e5m2)
HALF_COMPLEX = (torch.complex32,)
ALL = (*UNSIGNED, *HALF_COMPLEX, *TINY)
COMPLEX, WHOLE = (torch.complex64,), (torch.int64, torch.uint8)


def places(x: torch.Tensor) -> torch.Tensor:
    """Where two numbers lie."""
    return torch.arange(2, device=x.device)


def ones(x: torch.Tensor) -> torch.Tensor:
    """A convolution's weight."""
    return torch.ones(1, 1, 1, device=x.device)


def real(x: torch.Tensor) -> torch.Tensor:
    """Numbers that can be looked at."""
    return torch.view_as_real(x)[..., 0].float() if x.is_complex() else x.float()


REFUSED: list[tuple[str, tuple[torch.dtype, ...], Call]] = [
    ('"mul_cuda" not implemented', (*UNSIGNED, *TINY), lambda x: x * 2),
    ('"mul_cuda" not implemented', UNSIGNED, lambda x: x.mul_(x)),
    ('"div_true_cuda" not implemented', TINY, lambda x: x / 2),
    ('"abs_cuda" not implemented', TINY, lambda x: x.abs()),
    ('"where_cuda" not implemented', UNSIGNED, lambda x: torch.where(x == x, x, x)),
    ('"bitwise_and_cuda" not implemented', UNSIGNED, lambda x: x & x),
    ('"sortKeyValueInplace" not implemented', (*UNSIGNED, *TINY), lambda x: x.sort()),
    ('"or_cuda" not implemented', ALL, lambda x: x.any()),
    ('"index_cuda" not implemented', UNSIGNED, lambda x: x[x.to(torch.int64)]),
    ('"roll_cuda" not implemented', (*UNSIGNED, *TINY), lambda x: x.roll(1)),
    ('"pow_cuda" not implemented', (*UNSIGNED, *TINY), lambda x: x**2),
    ('"addcmul_cuda" not implemented', ALL, lambda x: torch.addcmul(x, x, x)),
    ('"topk_out_cuda" not implemented', (*UNSIGNED, *TINY), lambda x: x.topk(1)),
    ('"triu_tril_cuda_template" not implemented', (*UNSIGNED, *TINY), lambda x: x.expand(2, 2).tril()),
    ('"masked_fill_" not implemented', (*UNSIGNED[:2], *TINY), lambda x: x.masked_fill(x == x, 0)),
    ('"addmm_cuda" not implemented', (*HALF_COMPLEX, *TINY), lambda x: x[None] @ x[:, None]),
    ('"dot" not implemented', (*HALF_COMPLEX, *TINY), lambda x: x.dot(x)),
    ('"mean_cuda" not implemented', (*HALF_COMPLEX, *TINY), lambda x: x.mean()),
    ('"cumsum_cuda" not implemented', (*HALF_COMPLEX, *TINY), lambda x: x.cumsum(0)),
    ('"std_cuda" not implemented', TINY, lambda x: x.var()),
    ('"cuda_scatter_gather_base_kernel_func" not', ALL, lambda x: x.clone().scatter_add_(0, places(x), x)),
    ("supported for Long", (torch.int64,), lambda x: F.conv1d(x[None, None], x[None, None])),
    ("GET was unable to find an engine", (torch.int32,), lambda x: F.conv1d(x[None, None], x[None, None])),
    (r"\(CUDABoolType\) and weight type \(torch.cuda.F", (torch.bool,), lambda x: F.conv1d(x[None, None], ones(x))),
    ('"adaptive_avg_pool2d_cuda" not', (torch.int64,), lambda x: F.adaptive_avg_pool1d(x[None], 2)),
    ('"upsample_nearest1d_out_frame" not', (torch.int64,), lambda x: F.interpolate(x[None, None], scale_factor=2)),
    ('"host_softmax" not implemented', COMPLEX, lambda x: x.softmax(0)),
    ('"aminmax_all_cuda" not implemented', COMPLEX, lambda x: x.aminmax()),
    ("Sort does not support complex dtypes", COMPLEX, lambda x: x.median()),
    ("expected probabilities tensor to have floating type, got", WHOLE, torch.bernoulli),
    ("expected probabilities tensor to have floating type, got", WHOLE, lambda x: x.double().bernoulli_(x)),
    ("on the same device, but found at least two devices", (torch.float32,), lambda x: torch.ldexp(x, torch.tensor(1))),
    ("numel: integer multiplication overflow", (torch.float32,), lambda x: x.clone().resize_(-1)),
]
MOVED = [1.0, 1.0]
TAKEN: list[tuple[tuple[torch.dtype, ...], Call, list[Any]]] = [
    (UNSIGNED, lambda x: x / 2, [0.5, 0.5]),
    (UNSIGNED, lambda x: x * x.float(), [1.0, 1.0]),
    (TINY, lambda x: torch.where(x == x, x, x).float(), [1.0, 1.0]),
    (TINY, lambda x: x.clone().fill_(2).float(), [2.0, 2.0]),
    (ALL, lambda x: real(x.flip(0)), MOVED),
    (ALL, lambda x: real(x.gather(0, places(x))), MOVED),
    (ALL, lambda x: real(x.clone().scatter_(0, places(x), x)), MOVED),
    (ALL, lambda x: torch.isin(x, x[:1]), [True, True]),
    (HALF_COMPLEX, lambda x: real(x / 2 + x.sqrt().prod() + x.sum()), [3.5, 3.5]),
    ((torch.bool,), lambda x: torch.stack([x.median(), x.logical_not().median()]), [True, False]),
    ((torch.float32,), lambda x: torch.ldexp(x, torch.tensor(1.0)), [2.0, 2.0]),
]


def of_type(kind: torch.dtype) -> torch.Tensor:
    """Two ones."""
    return torch.ones(2).to(kind).to(device())


@pytest.mark.parametrize(("words", "kinds", "call"), REFUSED)
def test_types_that_cuda_refuses_are_refused(words: str, kinds: tuple[torch.dtype, ...], call: Call, cuda: Any) -> None:
    # GIVEN numbers of a type that CUDA's kernel does not take WHEN it is called THEN it says so, in a capture, too
    for x in map(of_type, kinds):
        with pytest.raises((NotImplementedError, RuntimeError), match=words):
            call(x)
        with cuda.graph(cuda.CUDAGraph()):
            x.view(torch.uint8).clone()
            with pytest.raises((NotImplementedError, RuntimeError), match=words):
                call(x)


@pytest.mark.parametrize(("kinds", "call", "wanted"), TAKEN)
def test_types_that_cuda_takes_are_taken(
    kinds: tuple[torch.dtype, ...], call: Call, wanted: list[Any], cuda: Any
) -> None:
    # GIVEN numbers of a type that CUDA's kernel takes WHEN it is called, or captured THEN that is computed
    for x in map(of_type, kinds):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            y = call(x)
        graph.replay()
        assert call(x).tolist() == y.tolist() == wanted
