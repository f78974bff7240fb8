"""Runs that differ in what they round first, or look up by its hash, are not the same, whatever they give."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.closeness import differences
from paramgraph_kit.rewrite.proving.proof import Prover

RATES = {30: 0.5}
ZERO = torch.zeros(())


def halves(x: torch.Tensor, by: float | torch.Tensor) -> torch.Tensor:
    return x.bfloat16() * by


def singles(x: torch.Tensor, by: float | torch.Tensor) -> torch.Tensor:
    return x * by


def looked_up(x: torch.Tensor, by: float | torch.Tensor) -> torch.Tensor:
    return x * RATES.get(by, 1.0)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(("step", "differ"), [(halves, True), (looked_up, True), (singles, False)])
def test_a_tensor_in_the_place_of_a_number_is_no_proof(step: object, differ: bool) -> None:
    # GIVEN a step with a number that is 0, of which halves and tables give the same as of a tensor
    there = pgk.device()
    x = torch.ones(4, device=there)
    own = Prover(step, (x, 0), {}).eager()
    # WHEN it is a tensor
    other = Prover(step, (x, ZERO.to(there)), {}).eager()
    # THEN what would differ of other numbers is told
    told = [each for each in differences(own, other) if each.startswith("how often")]
    assert bool(told) is differ, told
