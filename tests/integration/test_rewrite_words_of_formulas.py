"""What the host computes of a count by numpy goes into a tensor of its own, and the count ahead of the launch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk


class _Filter:
    def __init__(self, device: torch.device) -> None:
        self.p, self.k = torch.randn(8).to(device), 0
        self.seen: list[float] = []

    def move(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return 0.5 * x + 8 * np.cos(1.2 * self.k) + noise  # type: ignore[no-any-return]


class _Early(_Filter):
    def step(self, noise: torch.Tensor) -> torch.Tensor:
        self.k += 1
        self.p = self.move(self.p, noise)
        if self.p.sum() > 3:
            self.p = self.p[self.p.argsort()]
            self.seen.append(float(np.random.rand()))
        return self.p.sum()


class _Late(_Filter):
    def step(self, noise: torch.Tensor) -> torch.Tensor:
        self.p = self.move(self.p, noise)
        self.k += 1
        if self.p.sum() > 3:
            self.p = self.p[self.p.argsort()]
            self.seen.append(float(np.random.rand()))
        return self.p.sum()


@pytest.mark.parametrize("kind", [_Early, _Late])
def test_a_number_of_numpy_has_a_tensor_and_its_count_goes_where_it_is_read(kind: type[_Early | _Late]) -> None:
    # GIVEN a step whose method computes with a tensor and a number of numpy's, of a count that moves ahead or behind
    device = pgk.device()

    # WHEN it is diagnosed
    found = str(pgk.diagnose(kind(device).step, torch.randn(8).to(device), fix=True))

    # THEN no number's tensor is given for the tensor, and a count that is read afterwards is not put behind the launch
    assert "fill_(self.p)" not in found
    if kind is _Early:
        assert "number_in.fill_(8 * np.cos(1.2 * self.k))" in found
        assert "belongs before each launch: line" in found
    else:
        assert "belongs before each launch: line" not in found


class _Langevin:
    def __init__(self, device: torch.device) -> None:
        self.v, self.m, self.n = torch.randn(8).to(device), torch.ones(8).to(device), 0

    def scaled(self) -> None:
        kick = min(0.9, (1 + self.n) / (10 + self.n))
        self.v.mul_(kick).add_(self.m, alpha=1 - kick)
        self.n += 1

    def divided(self) -> None:
        kick = min(0.9, (1 + self.n) / (10 + self.n))
        self.v.addcdiv_(self.m, self.m + 1, value=-kick)
        self.n += 1

    def multiplied(self) -> None:
        kick = min(0.9, (1 + self.n) / (10 + self.n))
        self.v.mul_(kick)
        self.n += 1


@pytest.mark.parametrize(
    ("step", "written"),
    [
        ("scaled", "a tensor is no `alpha`, so write `self.v.mul_(kick_in).add_(self.m * (1 - kick_in))`"),
        ("divided", "a tensor is no `value`, so write `self.v.addcdiv_(self.m * (-kick_in), self.m + 1)`"),
        ("multiplied", ""),
    ],
)
def test_a_tensor_that_stands_for_a_number_is_no_alpha(step: str, written: str) -> None:
    # GIVEN a number of a count by which a line scales in place, as alpha, as value, or as a factor
    # WHEN it is diagnosed THEN the words have a tensor for it, and write the call anew where that would be asked for it
    found = str(pgk.diagnose(getattr(_Langevin(pgk.device()), step)))
    assert "`kick_in` for `kick`" in found
    assert written in found if written else "a tensor is no" not in found
