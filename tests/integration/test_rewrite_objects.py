"""An object that a step makes and then writes into: where the rest goes behind the launch, it is made there."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

FILTERED = """
class Found:
    def __init__(self, **parts): self.parts = dict(parts)
    def __getitem__(self, name): return self.parts[name]
    def keep(self, mask):
        for name, value in self.parts.items():
            self.parts[name] = value[mask]
net = nn.Linear(6, 5).to(device)
def f(x):
    out = net(x)
    data = Found(boxes=out[:, :4].abs(), scores=out[:, 4].sigmoid())
    sure = data["scores"] > 0.45
    data.keep(sure)
    wide = data["boxes"][:, 2] > 0.1
    data.keep(wide)
    return data["boxes"].sum(0), data["scores"]
args = (torch.randn(12, 6, device=device),)
"""


def test_an_object_that_is_filtered_is_made_behind_each_launch(fixed: Fixed) -> None:
    # GIVEN a step that makes an object of what a model gives, and filters what is in it
    # WHEN rewritten
    found = fixed(FILTERED)
    # THEN the graph ends before that object: filtered once, it would be filtered again by the next launch
    assert found.complete, str(found)
    assert "+    return out\n" in found.diff  # what comes of it behind the launch has gradients, as it had
