"""What a process knows of the simulated device before it is made, and what who traces knows of its convolutions."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
ORDERS = [torch.contiguous_format, torch.channels_last]
DEVICE = pgk.device()  # at import: before any test of this process runs a backward


def test_a_seed_that_was_set_before_the_device_was_made_counts() -> None:
    # GIVEN a fresh process that sets a seed before it asks for the device WHEN it draws, and again from the same seed
    code = (
        "import torch\ntorch.manual_seed(3)\n"
        "from paramgraph_kit.driver.select import device\n"
        "first = torch.rand(4, device=device())\ntorch.manual_seed(3)\n"
        "assert first.tolist() == torch.rand(4, device=device()).tolist()\n"
    )
    # THEN the numbers are the same, as with CUDA
    subprocess.run([sys.executable, "-c", code], check=True)


def steps_of(tensor: torch.Tensor) -> list[int]:
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("of_weight", ORDERS)
@pytest.mark.parametrize("of_images", ORDERS)
def test_what_is_traced_of_a_convolution_lies_as_it_does(
    of_images: torch.memory_format, of_weight: torch.memory_format, kernel: int, transposed: bool
) -> None:
    # GIVEN images and weights, each contiguous or channels last
    x = torch.randn(2, 4, 5, 5).to(DEVICE).to(memory_format=of_images)
    w = torch.randn(4, 4, kernel, kernel).to(DEVICE).to(memory_format=of_weight)
    how = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)

    def run(x: torch.Tensor, w: torch.Tensor) -> list[list[int]]:
        y = torch.ops.aten.convolution(x, w, None, *how)
        gradients = torch.ops.aten.convolution_backward(y, x, w, [0], *how, [True, True, False])
        return [steps_of(each) for each in (y, *gradients[:2])]

    # WHEN a convolution is traced, forward and backward
    with FakeTensorMode() as mode:
        traced = run(mode.from_tensor(x), mode.from_tensor(w))
    # THEN its results are known to lie as those that are computed
    assert traced == run(x, w)


def test_a_norm_behind_a_convolution_of_channels_last_has_its_gradients() -> None:
    # GIVEN a norm of torch's own that reads what a convolution gave
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4)).to(DEVICE)
    compiled = torch.compile(model, backend="paramgraph")
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6).to(DEVICE).to(memory_format=torch.channels_last)
        found = []
        for run in (model, compiled):
            # WHEN it is trained with images that lie channels last THEN compiled and eager have the same gradients
            model.zero_grad()
            y = run(x)
            y.backward(torch.linspace(-1, 1, y.numel(), device=DEVICE).view(y.shape))
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(found[1], found[0])
