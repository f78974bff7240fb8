"""When the state that a fix leaves is near enough to what the code left before."""

from __future__ import annotations

import math

import pytest
import torch

from paramgraph_kit.rewrite.proving.closeness import WRITES, differences

STATE = f"{WRITES}#1"


def wrong(then: torch.Tensor, now: torch.Tensor, near: torch.Tensor | None = None) -> list[str]:
    return differences({STATE: [then]}, {STATE: [now]}, {STATE: [near]} if near is not None else None)


def test_few_elements_that_a_rounding_moves_hide_no_others() -> None:
    # GIVEN a state of which a rounding moves three elements by as much as a step is long
    then = torch.zeros(1000)
    near = then.clone()
    near[:3] = 0.01
    # WHEN a fix moves other three, by as much THEN that may be a rounding
    now = then.clone()
    now[5:8] = -0.01
    assert wrong(then, now, near) == []
    # WHEN it moves a hundred, by less THEN that is none
    now = then.clone()
    now[5:105] = 0.001
    assert wrong(then, now, near)
    # AND without that rounding nothing may move
    assert wrong(then, near)


@pytest.mark.parametrize(("far", "is_wrong"), [(0.03, False), (0.04, False), (0.05, True), (math.nan, True)])
def test_how_far_a_rounding_moves_is_how_far_a_fix_may(far: float, is_wrong: bool) -> None:
    # GIVEN a state that a rounding moves by 0.01 WHEN a fix moves it THEN four times as far and no farther
    then, near = torch.zeros(8), torch.zeros(8)
    near[0] = 0.01
    now = then.clone()
    now[1] = far
    assert bool(wrong(then, now, near)) is is_wrong


def test_what_no_rounding_moves_stays() -> None:
    # GIVEN a rounding that moves nothing beyond its last bits WHEN an element moves THEN it is wrong
    then = torch.ones(8)
    assert wrong(then, then * 1.01, then * (1 + 1e-6))
    assert wrong(then, then * (1 + 1e-5), then) == []
