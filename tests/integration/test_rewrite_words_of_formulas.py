"""What the host computes of a count by numpy goes into a tensor of its own, and the count ahead of the launch."""

from __future__ import annotations

import math

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


def _ricker(t: float) -> float:
    return (1 - 2 * t) * math.exp(-t)


class _Wave:
    def __init__(self, device: torch.device) -> None:
        self.x, self.rows, self.n = torch.randn(8).to(device), torch.zeros(40, 8).to(device), 0

    def step(self, noise: torch.Tensor) -> torch.Tensor:
        y = self.x + 3 * _ricker(self.n * 0.01)
        self.rows[self.n] = y
        self.n += 1
        return y + noise


class _Filled(_Wave):
    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.by, self.at = torch.zeros(()).to(device), torch.zeros((), dtype=torch.long).to(device)

    def step(self, noise: torch.Tensor) -> torch.Tensor:
        y = self.x + 3 * self.by
        self.rows.index_copy_(0, self.at.reshape(1), y.unsqueeze(0))
        return y + noise


@pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
def test_a_number_that_a_helper_gives_to_math_stays_one_and_its_lines_agree() -> None:
    # GIVEN a count that a step gives to a helper with `math.exp`, and writes a row at, ahead of where it counts
    device = pgk.device()

    # WHEN it is diagnosed
    found = " ".join(str(pgk.diagnose(_Wave(device).step, torch.randn(8).to(device))).split())

    # THEN a tensor has what the helper gives, another one the place, and all say that the count goes behind
    assert "`n_in.fill_(_ricker(self.n * 0.01))`, here `n_in` for `_ricker(self.n * 0.01)`" in found
    assert "`n_at.fill_(self.n)`" in found
    assert "`self.rows.index_copy_(0, n_at.reshape(1)" in found
    assert "`self.n` as a tensor" not in found
    assert "once `self.n` is a tensor" not in found
    assert "belongs before" not in found


def test_tensors_that_are_filled_with_these_are_sound() -> None:
    # GIVEN the same with such tensors
    device = pgk.device()
    # WHEN it is diagnosed
    # THEN nothing is told
    assert "no problems" in str(pgk.diagnose(_Filled(device).step, torch.randn(8).to(device)))
