"""Functions out of programs that an H200 captured or refused: the doctor says the same of them without a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.driver.select import driver, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Tensor = torch.Tensor
DEVICE = driver().device
x = torch.arange(16.0, device=DEVICE).view(4, 4) - 7
many = torch.arange(5000, device=DEVICE)
host_mask = torch.tensor([True, False, True, False])
p = nn.Parameter(torch.ones(4, device=DEVICE))


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    yield
    twin().recover()


def takes_a_branch() -> Any:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


def goes_round() -> Any:
    return torch.while_loop(lambda a: a.sum() < 9, lambda a: (a + 1,), (x * 0,))  # type: ignore[no-untyped-call]


def looks_for_nan() -> None:
    p.grad = None
    with torch.autograd.detect_anomaly():
        y = (p * 2).sum()
        y.backward()  # type: ignore[no-untyped-call]


def sets_by_a_mask_of_the_host() -> None:
    x[host_mask] = 1.0


@pytest.mark.parametrize(
    ("function", "code", "begins"),
    [
        (takes_a_branch, "data-dependent-branch", "return torch.cond("),
        (goes_round, "data-dependent-branch", "return torch.while_loop("),
        (lambda: many.mode(), "sorted-by-steps", "(lambda: many.mode()"),
        (looks_for_nan, "anomaly-check", "y.backward()"),
        (sets_by_a_mask_of_the_host, "cpu-index", "x[host_mask] = 1.0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_what_a_gpu_refused_is_found_without_a_capture(function: Callable[[], Any], code: str, begins: str) -> None:
    # GIVEN a function that no capture takes WHEN it is diagnosed THEN class and line are right, and are all
    loud = [f for f in pgk.diagnose(function) if not BY_ID[f.code].silent]
    assert [f.code for f in loud] == [code]
    assert loud[0].frame is not None
    assert loud[0].frame.text.startswith(begins)


@pytest.mark.parametrize(
    "function",
    [
        lambda: x[host_mask],
        lambda: x[:, host_mask],
        lambda: many.view(5, 1000).mode(),
        lambda: many.view(5000, 1).mode(1),
    ],
)
def test_what_a_gpu_took_is_no_problem(function: Callable[[], Any]) -> None:
    # GIVEN a function that a capture takes: the host finds a mask's places itself, and short rows are sorted at once
    assert [f for f in pgk.diagnose(function) if not BY_ID[f.code].silent] == []
