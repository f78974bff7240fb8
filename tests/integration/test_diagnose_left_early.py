"""A branch that no call takes, and that leaves with another result, is told; so is a tensor that each call resizes."""

from __future__ import annotations

import time

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def told(function: object, *args: object) -> set[tuple[str, str]]:
    return {(f.code, f.frame.text) for f in pgk.diagnose(function, *args) if f.frame}


def test_a_clock_that_decides_which_result_is_returned_is_told_and_one_that_decides_nothing_is_not() -> None:
    # GIVEN steps that return another result, or do less, once some time has gone, and one that does the same then
    begun = time.time()

    def another(x: torch.Tensor) -> torch.Tensor:
        if time.time() - begun > 3600:
            return x * 0
        return x * 2

    def less(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        if time.monotonic() < 0:
            return y
        return y.sqrt() + 1

    def the_same(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        if time.time() - begun > 3600:
            return y
        return y

    # WHEN they are looked at
    x = torch.rand(4, device=DEVICE)
    # THEN the branch is frozen where it matters to the device
    assert told(another, x) == {("branch-frozen", "if time.time() - begun > 3600:")}
    assert told(less, x) == {("branch-frozen", "if time.monotonic() < 0:")}
    assert not told(the_same, x)


def test_a_tensor_that_each_call_makes_longer_is_told_and_one_that_fits_already_is_not() -> None:
    # GIVEN a table that grows by a row in each call, and one that is made as long as what comes
    grows, fits = torch.zeros(1, 3, device=DEVICE), torch.zeros(0, device=DEVICE)

    def growing(x: torch.Tensor) -> torch.Tensor:
        grows.resize_(grows.shape[0] + 1, 3)
        grows[-1] = x
        return grows.mean(0)

    def fitting(x: torch.Tensor) -> torch.Tensor:
        fits.resize_(x.shape)
        fits.copy_(x)
        return fits * 2

    # WHEN they are looked at
    x = torch.rand(3, device=DEVICE)
    # THEN a graph would write the same row for ever, and the other one is none of its business
    assert ("size-frozen", "grows.resize_(grows.shape[0] + 1, 3)") in told(growing, x)
    assert not told(fitting, x)
