"""Captures on autograd's thread of the simulator leave that thread as it was."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk

DEVICE = pgk.device()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def test_a_backward_is_captured_after_a_compiled_one() -> None:
    # GIVEN a compiled backward, which captures on autograd's own thread
    x = torch.ones(4, requires_grad=True, device=DEVICE)
    fast = pgk.compile(lambda x: (x * 2).relu())
    for _ in range(2):
        fast(x).sum().backward()
    x.grad = None
    # WHEN a user captures a forward and backward of their own
    graph, side = pgk.cuda.CUDAGraph(), pgk.cuda.Stream()
    with pgk.cuda.stream(side):
        (x * 3).sum().backward()  # type: ignore[no-untyped-call]
    x.grad = None
    with pgk.cuda.graph(graph, stream=side):
        (x * 3).sum().backward()  # type: ignore[no-untyped-call]
    graph.replay()
    # THEN autograd's thread followed the capture, as CUDA's engine does
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 4
