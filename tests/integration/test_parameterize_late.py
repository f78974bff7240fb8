"""Code that runs for the first time in a later kind of call: what it writes while it is traced is undone as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk


class Counter:
    seen = 0


class Counting(torch.autograd.Function):
    seen = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Counting.seen += 1
        return gradient * Counting.seen


def counts(x: torch.Tensor) -> torch.Tensor:
    Counter.seen += 1
    return x * Counter.seen


def branches(x: torch.Tensor, late: bool) -> Any:
    return counts(x) if late else x + 1


def learns(x: torch.Tensor, late: bool) -> Any:
    return Counting.apply(x)  # type: ignore[no-untyped-call]  # torch's


@pytest.mark.parametrize("function", [branches, learns])
def test_what_comes_late_is_counted_once_in_each_call(function: Any) -> None:
    # GIVEN a function that counts in a branch, or in its backward
    found = []
    for call in (function, pgk.parameterize(function)):
        Counter.seen = Counting.seen = 0
        rows: list[Any] = []

        # WHEN calls come there after others that do not
        for late in (False, False, True, True, False, True):
            x = torch.ones(3, device=pgk.device()).requires_grad_(late)
            y = call(x, late)
            if late:
                y.sum().backward()
            rows.append((y.tolist(), None if x.grad is None else x.grad.tolist(), Counter.seen, Counting.seen))
        found.append(rows)

    # THEN it has counted as in eager
    assert found[0] == found[1]
