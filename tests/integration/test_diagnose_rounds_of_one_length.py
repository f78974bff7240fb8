"""A loop that goes the same rounds in each call has decided nothing: ``for _ in range(3)`` beside one that has."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


class _Horizon:
    def __init__(self) -> None:
        self.i = 0
        self.net = torch.nn.Linear(8, 8).to(DEVICE)

    def collect(self, x: torch.Tensor) -> torch.Tensor:
        horizon = min(2 + self.i // 4, 6)
        for _ in range(horizon):
            x = self.net(x)
        return x

    def ahead(self, x: torch.Tensor) -> torch.Tensor:
        x = self.collect(x)
        self.i += 1
        for _ in range(3):
            x = self.net(x) * 2
        return x.sum()

    def within(self, x: torch.Tensor) -> torch.Tensor:
        for scale in (1, 2):
            x = self.collect(x) * scale
        self.i += 1
        return x.sum()

    def left(self, x: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            if self.i // 4 == k:
                break
            x = self.net(x)
        self.i += 1
        return x.sum()

    def steady(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.net(x)
        self.i += 1
        return x.sum()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ahead", "for _ in range(horizon):"),
        pytest.param("within", "for _ in range(horizon):", marks=pytest.mark.sweep),
        pytest.param("left", "if self.i // 4 == k:", marks=pytest.mark.sweep),
        pytest.param("steady", "", marks=pytest.mark.sweep),
    ],
)
def test_rounds_that_a_count_decides_are_told_at_their_loop(name: str, line: str) -> None:
    # GIVEN a loop whose rounds a slow count decides, beside, or in, one that goes as many in each call
    # WHEN it is diagnosed
    found = pgk.diagnose(getattr(_Horizon(), name), torch.ones(4, 8, device=DEVICE))
    # THEN that loop, or what leaves it, is told, and no loop of as many rounds as ever
    told = [f.frame.text for f in found.failures if f.code == "branch-frozen" and f.frame]
    assert told == [line] * bool(line), found
