"""What a dictionary keeps for each key is a tensor of its own, and none that each launch writes."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def test_a_tensor_that_is_kept_by_its_key_is_not_written_before_each_launch() -> None:
    # GIVEN rows that are made once for each key
    cache = dict[int, torch.Tensor]()

    def embed(key: int, x: torch.Tensor) -> torch.Tensor:
        row = cache.get(key) if key in cache else cache.setdefault(key, torch.full((8,), float(key), device=DEVICE))
        return x + row if row is not None else x

    # WHEN it is to be fixed THEN no diff gives all keys one tensor, with which the second would have the first's
    found = pgk.diagnose(embed, 3, torch.ones(2, 8, device=DEVICE), fix=True)
    assert "branch-frozen" in found.codes, found
    assert found.fix is not None
    assert "cache.setdefault(key, row_in)" not in found.fix.diff, found.fix.diff
