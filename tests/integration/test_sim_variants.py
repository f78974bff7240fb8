"""A part of the sweep over operands as they come; `python -m tests.sweep.variants` goes on as long as it is told."""

from __future__ import annotations

import warnings
from itertools import islice

import pytest
import torch

from tests.sweep.variants import TYPES, Trial, trials, unlike

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


@pytest.mark.parametrize("captured", [False, True], ids=["eagerly", "in a capture"])
def test_operands_of_any_kind_give_what_they_give_on_the_host(captured: bool) -> None:
    # GIVEN calls of pointwise operators and reductions: strided, expanded, empty, lazy and promoted, in place and out=
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operands are cast
        chosen = list(islice(trials(5), 700))
    assert {each.what for each in chosen} == {"", "in place", "out="}
    # WHEN each runs on the host and on the device THEN results, what is written to, and refusals are the same
    found = {f"{each.name} {each.what} of {each.operands()}": unlike(each, captured=captured) for each in chosen}
    assert {what: why for what, why in found.items() if why} == {}


@pytest.mark.parametrize("captured", [False, True], ids=["eagerly", "in a capture"])
def test_the_comparison_sees_another_number_and_another_error(captured: bool) -> None:
    # GIVEN a call that computes something else on the device, and one that fails there alone
    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.is_cpu else x + 2

    def failing(x: torch.Tensor) -> torch.Tensor:
        if x.is_cpu:
            return x + 1
        raise ValueError("not here")

    x = torch.ones(2, dtype=TYPES[0])
    # WHEN they are compared THEN each is told
    assert "differ" in unlike(Trial("other", "", other, (x,), {}), captured=captured)
    if not captured:  # there torch would warn of the empty graph
        assert "not here" in unlike(Trial("failing", "", failing, (x,), {}), captured=captured)
