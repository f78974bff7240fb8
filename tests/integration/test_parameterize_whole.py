"""Operations that torch takes apart when it traces: ``pgk.parameterize`` gives eager's bits and aliases anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.whole import kept_whole

CALLS = 5
Operation = Callable[[Tensor], Tensor]


def numbers(seed: int) -> Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def labels(*rows: object) -> Tensor:
    return torch.tensor(rows, device=pgk.device())


OPERATIONS: dict[str, Operation] = {
    "no dropout in eval mode": nn.Dropout(0.5).eval(),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout of a half": lambda x: F.dropout(x, 0.5),
    "dropout of everything": lambda x: F.dropout(x, 1.0),
    "dropout in attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    "bicubic": lambda x: F.interpolate(x.view(1, 1, 2, 4), size=(3, 7), mode="bicubic"),
    "bilinear": lambda x: F.interpolate(x.view(1, 1, 2, 4), size=(3, 7), mode="bilinear"),
    "linear": lambda x: F.interpolate(x.view(1, 2, 4), scale_factor=1.7, mode="linear"),
    "trilinear": lambda x: F.interpolate(x.view(1, 1, 2, 2, 2), size=(3, 3, 5), mode="trilinear"),
    "margins of one label": lambda x: F.multi_margin_loss(x, labels(0, 3)),
    "margins of labels": lambda x: F.multilabel_margin_loss(x, labels([0, -1, 1, 1], [1, 0, -1, 0])),
}


def as_it_is(fn: Any) -> Any:
    return fn


def written(operation: Operation, x: Tensor) -> tuple[Tensor, Tensor]:
    """A write to what an operation gives, and what is seen of it in what it was given."""
    inside = x * 2
    found = operation(inside)
    found.add_(1)
    return inside, found


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_tracing_takes_apart_is_eager_s_bit_for_bit(name: str) -> None:
    # GIVEN a function that writes to what an operation gives, and one through which a loss goes
    operation = OPERATIONS[name]
    found: list[list[Tensor]] = []
    for wrap in (as_it_is, pgk.parameterize):
        writes, learns = wrap(lambda x: written(operation, x)), wrap(operation)
        torch.manual_seed(1)
        rows: list[Tensor] = []

        # WHEN it is called with other numbers, from graphs and without
        for k in range(CALLS):
            x = numbers(k).requires_grad_()
            rows += writes(numbers(k))
            loss = learns(x).square().sum()
            loss.backward()
            assert x.grad is not None
            rows += [x.grad, torch.rand(2, device=pgk.device())]  # and random numbers go on from where they were
        found.append(rows)

    # THEN all bits are the same
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(*found, strict=True))


def test_dropout_that_drops_nothing_gives_back_what_it_is_given() -> None:
    # GIVEN a model in eval mode that ends with dropout
    model = pgk.parameterize(nn.Dropout(0.5).eval())
    for k in range(CALLS):
        x = numbers(k)

        # WHEN its result is written
        result = model(x)
        result.zero_()

        # THEN it is the argument itself, as in eager
        assert result is x
        assert not x.any()


def test_torch_s_own_ways_are_back_after_a_trace() -> None:
    # GIVEN the ways in which torch's tracing takes an operation apart
    operation = torch.ops.aten.dropout.default
    before = dict(operation.py_kernels)
    assert before, "torch takes it apart no more"

    # WHEN something is traced
    with kept_whole():
        assert not operation.py_kernels

    # THEN they are the same as before
    assert operation.py_kernels == before
