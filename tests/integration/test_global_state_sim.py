"""A graph that was captured under one state of torch's switches is not launched under another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from tests.global_state import modes

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = driver().device
SWITCHES = modes(DEVICE.type)


class Scaled(nn.Module):
    """A product, and a new tensor, whose dtypes are chosen by switches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), torch.full((8,), 0.1, device=x.device) * x.sum()


@pytest.mark.parametrize("way", ["compile", "parameterize"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_switching_gives_eagers_bits(switch: str, way: str) -> None:
    # GIVEN a model that runs from graphs
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Scaled().to(DEVICE)
    call: Any = pgk.compile(model) if way == "compile" else pgk.parameterize(model)
    values = SWITCHES[switch]
    kinds = set()
    for k in [k for k in range(len(values)) for _ in range(3)] + [*range(len(values))] * 2:
        # WHEN a switch is set THEN its graphs have eager's bits, dtype and gradients under that switch
        x = torch.randn(4, 8).to(DEVICE)
        with values[k]():
            ours, theirs = call(x), model(x)
        for a, b in zip(ours, theirs, strict=True):
            assert (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad)
            assert torch.equal(a.detach().cpu(), b.detach().cpu())
        kinds.add(tuple([(y.dtype, y.requires_grad) for y in ours]))
    assert any(row.launches for row in pgk.report(call).rows)
    # AND the switch did make a difference, where it can be seen in a tensor
    assert len(kinds) > 1 or switch == "deterministic algorithms"
    torch._dynamo.reset()
