"""Activations of direct calls: given back after the backward, small ones left on a shelf."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.backend.direct.calls import DirectCall
from tests.integration import test_direct_calls
from tests.integration.test_direct_calls import DEVICE, is_direct, warmed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
made = test_direct_calls.made


def test_activations_are_given_back_after_the_backward(made: list[DirectCall]) -> None:
    # GIVEN a direct step that saves 1 MiB and more
    compiled = warmed(lambda x: x.sin().cos().exp(), 512, 1024)
    x = torch.randn(512, 1024, device=DEVICE, requires_grad=True)
    assert is_direct(made[0])
    gc.collect()
    before = pgk.cuda.memory_allocated()

    # WHEN
    loss = compiled(x).sum()
    held = pgk.cuda.memory_allocated() - before
    loss.backward()
    x.grad = None

    # THEN only the loss is left, while its graph still lives
    assert held >= 2 << 20
    assert pgk.cuda.memory_allocated() - before <= 1024


def wide(x: Tensor) -> Tensor:
    """A function that saves enough small activations for a shelf."""
    for _ in range(4):
        x = x.sin() * x.cos() + x.exp().tanh()
    return x


def test_small_activations_go_as_one_shelf(made: list[DirectCall]) -> None:
    # GIVEN a direct step that saves many small activations
    compiled = warmed(wide, 4, 8)
    step = made[0]._step
    assert step is not None

    # WHEN
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    result = compiled(x)

    # THEN one shelf is saved in the place of tensors, and the gradients are eager's
    assert len(step.located) == 1
    assert sum(each is None for each in result.grad_fn.saved) >= 3
    assert result.grad_fn.shelf is not None
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])


def test_a_launch_that_cannot_take_the_shelf_gets_tensors(made: list[DirectCall]) -> None:
    # GIVEN a forward that has left activations on a shelf
    compiled = warmed(wide, 4, 8)
    step = made[0]._step
    assert step is not None
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    result = compiled(x)
    assert step.located

    # WHEN the backward's graph may not be launched
    step.backward.launcher.pause()
    result.sum().backward()

    # THEN it runs ungraphed on the same activations, and the next step goes on without a shelf
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])
    assert not step.located
    x.grad = None
    compiled(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])

    # AND once it may, with them again
    step.backward.launcher.resume()
    for _ in range(3):
        x.grad = None
        compiled(x).sum().backward()
    assert step.located
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(wide(x).sum(), x)[0])
