"""What waits for numbers is told of where there are some, and not of tensors of none, for which nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

BODIES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "unique": lambda x, i: (x * 2, torch.unique(i)),
    "unique along": lambda x, i: (x * 2, torch.unique(i[:, None], dim=0)),
    "bincount": lambda x, i: x * 2 + torch.bincount(i, minlength=3),
    "histc": lambda x, i: x * 2 + torch.histc(i.float(), 3),
    "repeat_interleave": lambda x, i: (x * 2, torch.repeat_interleave(i)),
    "svd": lambda x, i: (x * 2, torch.linalg.svd(i.float()[:, None])),
}


@pytest.mark.parametrize("name", BODIES)
def test_nobody_waits_for_no_numbers(name: str) -> None:
    # GIVEN a function that waits for numbers
    x = torch.ones(3, device=pgk.device())
    some = torch.arange(3, device=pgk.device())
    # WHEN it is given none THEN there is no problem; of some it is one
    assert not pgk.diagnose(BODIES[name], x, some[:0]).failures
    assert pgk.diagnose(BODIES[name], x, some).failures
