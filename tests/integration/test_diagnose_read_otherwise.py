"""What a branch exchanges that other calls do not take, and these read, is told whichever call is asked."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()
last = torch.zeros((), device=DEVICE)
kept = {"r1": torch.zeros((), device=DEVICE)}
state = types.SimpleNamespace(last=torch.zeros((), device=DEVICE), logged=None)


def of_the_module(i: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    global last
    if i % 4 == 0:
        last = (x * 2).sum()
    return x.sum(), last.detach()


def of_a_dictionary(i: int, x: torch.Tensor) -> torch.Tensor:
    if i % 4 == 0:
        kept["r1"] = (x * 2).sum()
    return x.sum() + kept["r1"]


def of_an_object(i: int, x: torch.Tensor) -> torch.Tensor:
    if i % 1000 == 0:
        state.last = (x * 2).sum()
    return x.sum() + state.last  # type: ignore[no-any-return]


def in_place(i: int, x: torch.Tensor) -> torch.Tensor:
    if i % 4 == 0:
        state.last.copy_((x * 2).sum())
    return x.sum() + state.last  # type: ignore[no-any-return]


def unread(i: int, x: torch.Tensor) -> torch.Tensor:
    if i % 4 == 0:
        state.logged = (x * 2).sum()
    return x.sum()


def either_way(i: int, x: torch.Tensor) -> torch.Tensor:
    if i % 4 == 0:
        state.last = (x * 2).sum()
    else:
        state.last = x.sum()
    return x.sum() + state.last  # type: ignore[no-any-return]


def _told(step: Callable[..., object], number: int) -> list[str]:
    found = pgk.diagnose(step, number, torch.ones(4, device=DEVICE))
    return [f.frame.text for f in found.failures if f.code == "stale-input" and f.frame]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (of_the_module, "return x.sum(), last.detach()"),
        pytest.param(of_a_dictionary, 'return x.sum() + kept["r1"]', marks=pytest.mark.sweep),
        pytest.param(of_an_object, "return x.sum() + state.last", marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_tensor_that_other_calls_read_is_told_whichever_call_is_asked(
    step: Callable[..., object], line: str, number: int
) -> None:
    # GIVEN a step that exchanges a tensor in some of its calls, and reads it in all
    # WHEN it is asked with a number that does, or with one that does not THEN the line that reads it is told
    assert [each.partition("  #")[0] for each in _told(step, number)] == [line]


@pytest.mark.parametrize("step", [in_place, *(pytest.param(s, marks=pytest.mark.sweep) for s in (unread, either_way))])
def test_a_tensor_that_is_written_in_place_or_not_read_is_none(step: Callable[..., object]) -> None:
    # GIVEN a step that writes in place, or sets what no call reads, or sets it in each call
    # WHEN it is asked THEN no tensor is told as another one
    assert _told(step, 0) == []
