"""Where results lie in memory, as an H200 laid them: what a view of theirs may be depends on that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paramgraph_kit.driver.select import device, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflection": lambda v: F.pad(v, (1, 1, 1, 1), mode="reflect"),
    "replication": lambda v: F.pad(v, (1, 1, 1, 1), mode="replicate"),
    "pixels": lambda v: F.pixel_shuffle(v, 2),
    "pixels back": lambda v: F.pixel_unshuffle(v, 2),
    "channels": lambda v: F.channel_shuffle(v, 2),
}


@pytest.fixture
def image() -> Tensor:
    """Two images that lie with their channels last."""
    made = torch.arange(128.0).view(2, 4, 4, 4).to(memory_format=torch.channels_last)
    return made.to(device())


def _in_a_capture(call: Callable[[], Any]) -> Any:
    cuda: Any = twin()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        found = call()
    graph.replay()
    return found


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_images_of_any_order_lie_in_rows_behind_these(image: Tensor, name: str, captured: bool) -> None:
    # GIVEN images that lie with channels last WHEN they are padded or shuffled THEN the result lies in rows
    call = ROWS[name]
    found = _in_a_capture(lambda: call(image)) if captured else call(image)
    expected = call(image.cpu().contiguous())
    assert found.stride() == torch.empty(expected.shape).stride()
    assert torch.equal(found.cpu(), expected)
    # and so does its gradient
    leaf = image.clone().requires_grad_()
    (grad,) = torch.autograd.grad(call(leaf).sum(), leaf)
    assert grad.is_contiguous()


def test_channels_that_cannot_be_viewed_in_groups_are_not_shuffled(image: Tensor) -> None:
    # GIVEN images with two dimensions exchanged WHEN channels are shuffled THEN the view in groups is refused
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        F.channel_shuffle(image.contiguous().transpose(2, 3), 2)


@pytest.mark.parametrize("captured", [False, True])
def test_heads_lie_beside_each_other_behind_attention(captured: bool) -> None:
    # GIVEN queries with heads first WHEN attention is computed THEN each place's heads lie together, and can be viewed
    q = torch.rand(2, 3, 5, 4, device=device())

    def call() -> Tensor:
        return F.scaled_dot_product_attention(q, q, q)

    call()
    found = _in_a_capture(call) if captured else call()
    assert found.shape == (2, 3, 5, 4)
    assert found.transpose(1, 2).view(2, 5, 12).is_contiguous()
    assert torch.allclose(found.cpu(), F.scaled_dot_product_attention(q.cpu(), q.cpu(), q.cpu()), atol=1e-6)


def test_attention_of_cudnns_lies_as_its_queries_do() -> None:
    # GIVEN halves, which cuDNN takes WHEN attention is computed THEN the result lies in the order of the queries
    q = torch.rand(2, 3, 5, 8, device=device()).half()
    assert F.scaled_dot_product_attention(q, q, q).is_contiguous()
    t = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert F.scaled_dot_product_attention(t, q, q).stride() == t.stride()


def test_signals_lie_in_rows_behind_a_transform() -> None:
    # GIVEN numbers in another order WHEN they are transformed there and back THEN the result lies in rows
    p = torch.arange(24.0, device=device()).view(2, 3, 4).permute(2, 0, 1)
    assert torch.fft.irfft(torch.fft.rfft(p), n=3).is_contiguous()


def test_the_last_factor_of_singular_values_lies_in_rows() -> None:
    # GIVEN a matrix WHEN it is factored THEN the first factor lies in columns, and the last one in rows
    u, _, v = torch.linalg.svd(torch.arange(12.0, device=device()).view(4, 3), full_matrices=False)
    assert u.mT.is_contiguous()
    assert v.is_contiguous()


def test_a_norm_of_torchs_own_lies_as_what_it_norms(image: Tensor) -> None:
    # GIVEN images with two dimensions exchanged WHEN they are normed without a weight THEN the result lies as they do
    t = image.contiguous().transpose(2, 3)
    assert F.batch_norm(t, None, None, training=True).stride() == t.stride()
    # and one of cuDNN's lies in rows
    ones = torch.ones(4, device=t.device)
    assert F.batch_norm(t, None, None, ones, ones, training=True).is_contiguous()
