"""Attention on the simulated device: which kernel an H200 takes, and what its first call in a capture needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from paramgraph_kit.driver.sim.attention import CUDNN, EFFICIENT, FLASH, MATH, chosen
from paramgraph_kit.driver.sim.libraries import forget

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

HALF, FLOAT, DOUBLE = torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("dtype", "head", "masked", "wanted"),
    [
        (HALF, 64, False, CUDNN),
        (HALF, 64, True, CUDNN),
        (HALF, 12, False, FLASH),
        (FLOAT, 8, True, EFFICIENT),
        (FLOAT, 7, False, MATH),
        (DOUBLE, 8, False, MATH),
    ],
)
def test_the_kernel_is_the_one_that_an_h200_takes(dtype: torch.dtype, head: int, masked: bool, wanted: str) -> None:
    # GIVEN operands of a type and a size WHEN nothing is switched off THEN
    q = torch.ones(1, 2, 4, head, dtype=dtype)
    mask = torch.ones(4, 4, dtype=torch.bool) if masked else None
    assert chosen(q, q, q, mask, False) == wanted


def test_a_kernel_that_cannot_take_it_is_refused(sim: torch.device) -> None:
    # GIVEN single precision WHEN only kernels for halves may be taken THEN torch's words
    q = torch.ones(1, 2, 4, 8, device=sim)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, q, q)


def test_kernels_of_nobodys_library_need_no_warm_up(sim: torch.device, cuda: Any) -> None:
    # GIVEN no handles of libraries
    forget()
    q: Any = torch.ones(1, 2, 4, 8, device=sim, requires_grad=True)
    attend: Any = F.scaled_dot_product_attention
    # WHEN captured as the first call, with its backward THEN it is what it is eagerly
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        attend(q, q, q).sum().backward()
    graph.replay()
    captured = q.grad.clone()
    q.grad = None
    attend(q, q, q).sum().backward()
    assert torch.equal(captured, q.grad)


def test_a_mask_and_causality_may_come_together_but_for_products(sim: torch.device) -> None:
    # GIVEN a mask that leaves out the first place WHEN it is causal, too THEN both hold
    q, v = torch.ones(1, 1, 3, 8, device=sim), torch.arange(3.0, device=sim).reshape(1, 1, 3, 1).expand(1, 1, 3, 8)
    mask = torch.tensor([True, True, False], device=sim).expand(3, 3)
    found = F.scaled_dot_product_attention(q, q, v.contiguous(), attn_mask=mask, is_causal=True)
    assert found[0, 0, :, 0].tolist() == [0.0, 0.5, 0.5]
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="Explicit attn_mask"):
        F.scaled_dot_product_attention(q, q, v, attn_mask=mask, is_causal=True)
