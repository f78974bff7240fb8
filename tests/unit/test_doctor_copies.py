"""Copies between host and GPU: the doctor tells which way they go, of what memory, and which none sees by its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.doctor import explain
from paramgraph_kit.driver.select import driver, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

DEVICE = driver().device
x, one = torch.ones(4, 4, device=DEVICE), torch.ones((), device=DEVICE)
row, pinned = torch.ones(4).pin_memory(), torch.ones(4, 4).pin_memory()
pageable, mask = torch.ones(4, 4), torch.ones(4, 4, device=DEVICE, dtype=torch.bool)


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    yield
    twin().recover()


def set_row() -> None:
    x[0] = row


def set_row_of_pageable() -> None:
    x[0] = pageable[0]


def set_row_of_the_host() -> None:
    pinned[0] = x[0]


def set_row_of_pageable_memory() -> None:
    pageable[0] = x[0]


def set_through_a_mask() -> None:
    x[mask] = one


def to_every_second_column() -> None:
    pinned[:, ::2].copy_(x[:, ::2], non_blocking=True)


def of_every_second_column() -> None:
    x[:, ::2].copy_(pinned[:, ::2], non_blocking=True)


def of_columns() -> None:
    x.copy_(pinned.t(), non_blocking=True)


def to_the_gpu_with_gaps() -> None:
    pinned.t()[::2].to(DEVICE, non_blocking=True)


def to_the_gpu() -> None:
    pinned.to(DEVICE)


def to_the_host() -> None:
    pinned.copy_(x)


def to_pageable_memory() -> None:
    pageable.copy_(x)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        *((each, "blocking-copy") for each in (set_row, set_row_of_the_host, to_the_gpu, to_the_host)),
        *((each, "copy-to-cpu") for each in (set_row_of_pageable_memory, to_pageable_memory)),
        (set_row_of_pageable, "copy-to-gpu"),
        (set_through_a_mask, "mask-assignment"),
        *((each, "strided-copy") for each in (to_every_second_column, of_every_second_column, of_columns)),
        (to_the_gpu_with_gaps, "strided-copy"),
    ],
)
def test_a_copy_is_named_for_where_it_goes_and_what_its_memory_is(body: Callable[[], None], code: str) -> None:
    # GIVEN a copy that no capture takes WHEN its error is explained, and WHEN the function is watched without a capture
    error = raised_by(body)
    watched = pgk.diagnose(body)
    # THEN both say the same
    assert error is not None
    assert explain(error).code == code
    assert watched.codes == (code,)


def raised_by(body: Callable[[], Any]) -> BaseException | None:
    """What a capture of this raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the graph is empty
            with twin().graph(twin().CUDAGraph()):
                body()
    except Exception as error:
        return error
    return None


class Net(nn.Module):
    """A model whose normalization has the name of another operation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)  # type: ignore[no-any-return]


def test_a_module_is_not_the_operation_whose_name_it_has() -> None:
    # GIVEN a module "norm", in which the host waits, beside torch.norm, in which it does too
    net = Net().to(DEVICE)
    # WHEN it is captured THEN its own cause is told
    error = raised_by(lambda: net(x))
    assert error is not None
    assert explain(error).code == "counter-read"
