"""Batch norms of halves, and with statistics of another type, as an H200 computed them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.driver.select import device, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_halves_normed_by_halves_are_rounded_once(dtype: torch.dtype, training: bool) -> None:
    # GIVEN a norm of halves whose parameters are halves WHEN it is computed, forward and backward, and captured
    sim, cuda = device(), twin()
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3).to(sim).to(dtype).train(training)
    x = torch.randn(4, 3, 2).to(dtype).to(sim).requires_grad_()
    before = [norm.running_mean.clone(), norm.running_var.clone()]  # type: ignore[union-attr]
    found = norm(x)
    grads = torch.autograd.grad(found.float().pow(2).sum(), (x, norm.weight, norm.bias))
    # THEN the result is that of float32, rounded; so are gradients, and types are those of what they belong to
    wide = x.detach().cpu().float().requires_grad_()
    parts = [norm.weight.cpu().float(), norm.bias.cpu().float()]
    ours = [each.detach().requires_grad_() for each in parts]
    exact = F.batch_norm(wide, before[0].cpu().float(), before[1].cpu().float(), ours[0], ours[1], training)
    assert torch.equal(found.cpu(), exact.to(dtype))
    expected = torch.autograd.grad(exact.to(dtype).float().pow(2).sum(), (wide, *ours))
    for grad, known in zip(grads, expected, strict=True):
        assert grad.dtype is dtype
        assert torch.allclose(grad.cpu().float(), known, atol=0.05, rtol=0.02)
    moved = (norm.running_mean != before[0]).any()  # type: ignore[union-attr]
    assert bool(moved) == training
    graph: Any = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(graph):
        again = norm(x)
    graph.replay()
    assert again.dtype is dtype
    assert torch.equal(again.cpu(), found.cpu())


def test_statistics_of_another_type_are_taken_in_evaluation() -> None:
    # GIVEN running statistics that are halves WHEN numbers of float32 are normed by them THEN they are
    x = torch.arange(12.0, device=device()).view(2, 3, 2)
    mean, var = torch.zeros(3, device=x.device).half(), torch.ones(3, device=x.device).half()
    assert torch.allclose(F.batch_norm(x, mean, var), x, atol=1e-3)


def test_a_weight_of_another_type_is_refused_as_by_cudnn() -> None:
    # GIVEN a layer of halves WHEN it is given float32 THEN cuDNN's words say which two types are not one
    layer = nn.BatchNorm1d(3).to(device()).half()
    with pytest.raises(RuntimeError, match=r"torch.cuda.FloatTensor does not equal torch.cuda.HalfTensor"):
        layer(torch.ones(2, 3, 2, device=device()))
