"""Fixes of quantization observers: a scale of what was seen, and a zero point that Python rounds and clips."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

OBSERVER = """\
class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.zeros(1))
        self.register_buffer("high", torch.zeros(1))

    def scales(self):
        scale = (self.high.item() - self.low.item()) / 255
        zero = int(round(3 - self.low.item() / max(scale, 1e-8)))
        zero = max(0, min(255, zero))
        return scale, zero

    def forward(self, x):
        self.low.copy_(0.9 * self.low + 0.1 * x.min())
        self.high.copy_(0.9 * self.high + 0.1 * x.max())
        scale, zero = self.scales()
        return ((x / scale + zero).round().clamp(0, 255) - zero) * scale

net = Observer().to(device)
args = (torch.randn(8, 4, device=device),)

def f(x):
    return net(x)
"""


def test_a_zero_point_is_rounded_on_the_device_as_python_rounds_it(tmp_path: Path) -> None:
    # GIVEN an observer whose scale and zero point are Python's WHEN its step is rewritten
    fix = rewritten(OBSERVER, tmp_path)
    # THEN it is whole, and both are computed in doubles, as numbers, which change the type of nothing
    assert fix.complete, fix
    lines = lines_of(fix)
    low, high = "self.low.detach().squeeze().double()", "self.high.detach().squeeze().double()"
    assert f"scale = ({high} - {low}) / 255" in lines, fix
    assert f"zero = (3 - {low} / scale.clamp(min=1e-8)).round().long()" in lines, fix
    # THEN of whole numbers none is asked whether it is one
    assert "zero = zero.clamp(max=255).clamp(min=0)" in lines, fix


QUANTIZED = OBSERVER.replace(
    "return ((x / scale + zero).round().clamp(0, 255) - zero) * scale",
    "return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)",
)


def test_a_quantization_takes_the_types_that_a_gpu_takes(tmp_path: Path) -> None:
    # GIVEN the same, by which torch quantizes: a GPU takes no doubles and no integers of 64 bits there
    assert QUANTIZED != OBSERVER
    # WHEN its step is rewritten
    fix = rewritten(QUANTIZED, tmp_path)
    # THEN it is whole, and gives both in their types
    assert fix.complete, fix
    assert "return torch.fake_quantize_per_tensor_affine(x, scale.float(), zero.int(), 0, 255)" in lines_of(fix)
