"""Words for the first rows of an order, as many as the host says: all are picked, and a mask says which count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

EASIEST = """
class Pacing:
    def __init__(self):
        self.share = 0.4
    def step(self):
        self.share = min(1.0, self.share + 0.1)
        return self.share
pacing = Pacing()
def f(x):
    each = x.square()
    k = max(1, int(pacing.step() * len(x)))
    idx = each.ORDER[:k]
    return each[idx].mean()
args = (torch.randn(16, device=device),)
"""


@pytest.mark.parametrize("order", ["argsort()", "argsort(descending=True)"])
def test_the_first_of_an_order_are_told_with_a_mask_of_what_they_pick(order: str, tmp_path: Path) -> None:
    # GIVEN a step that learns by its easiest rows, more of them each time
    names = run(EASIEST.replace("ORDER", order), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN no place stands for others: row 0 would count again
    told = next(f.fix for f in found.failures if f.frame is not None and f.frame.text.startswith("idx"))
    assert f"`idx = each.{order}`, all of it" in told
    assert "`torch.where(kept, each[idx], 0).sum() / kept.sum()` for `each[idx].mean()`" in told
    # AND these words give the same number
    each, k_in = torch.randn(16).square(), torch.tensor(6)
    at = torch.arange(16).view(-1)
    idx, kept = eval(f"each.{order}"), at < k_in
    assert torch.allclose(torch.where(kept, each[idx], 0).sum() / kept.sum(), each[idx[:6]].mean())
    assert "(at < k_in)" in told


def test_a_part_of_a_tensor_that_is_no_order_has_zeros_as_ever(tmp_path: Path) -> None:
    # GIVEN the first rows of what is no order WHEN diagnosed THEN zeros stand behind them
    text = EASIEST.replace("idx = each.ORDER[:k]", "y = each[:k]").replace("each[idx].mean()", "y.sum()")
    names = run(text, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    told = next(f.fix for f in found.failures if f.frame is not None and f.frame.text.startswith("y ="))
    assert "kept" not in told
