"""Types that CUDA's kernels take and the CPU's do not, or the other way round, and what is said of them [H200]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.select import device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Call = Callable[[torch.Tensor], Any]
UNSIGNED, TINY = (torch.uint16, torch.uint32, torch.uint64), (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX, WHOLE = (torch.complex64,), (torch.int64, torch.uint8)
REFUSED: list[tuple[str, tuple[torch.dtype, ...], Call]] = [
    ('"mul_cuda" not implemented', (*UNSIGNED, *TINY), lambda x: x * 2),
    ('"mul_cuda" not implemented', UNSIGNED, lambda x: x.mul_(x)),
    ('"div_true_cuda" not implemented', TINY, lambda x: x / 2),
    ('"abs_cuda" not implemented', TINY, lambda x: x.abs()),
    ('"where_cuda" not implemented', UNSIGNED, lambda x: torch.where(x == x, x, x)),
    ('"bitwise_and_cuda" not implemented', UNSIGNED, lambda x: x & x),
    ('"sortKeyValueInplace" not implemented', (*UNSIGNED, *TINY), lambda x: x.sort()),
    ('"host_softmax" not implemented', COMPLEX, lambda x: x.softmax(0)),
    ('"aminmax_all_cuda" not implemented', COMPLEX, lambda x: x.aminmax()),
    ("Sort does not support complex dtypes", COMPLEX, lambda x: x.median()),
    ("expected probabilities tensor to have floating type, got", WHOLE, torch.bernoulli),
    ("expected probabilities tensor to have floating type, got", WHOLE, lambda x: x.double().bernoulli_(x)),
    ("on the same device, but found at least two devices", (torch.float32,), lambda x: torch.ldexp(x, torch.tensor(1))),
    ("numel: integer multiplication overflow", (torch.float32,), lambda x: x.clone().resize_(-1)),
]
TAKEN: list[tuple[tuple[torch.dtype, ...], Call, list[Any]]] = [
    (UNSIGNED, lambda x: x / 2, [0.5, 0.5]),
    (UNSIGNED, lambda x: x * x.float(), [1.0, 1.0]),
    (TINY, lambda x: torch.where(x == x, x, x).float(), [1.0, 1.0]),
    (TINY, lambda x: x.clone().fill_(2).float(), [2.0, 2.0]),
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
