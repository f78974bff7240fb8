"""The best that a step has seen so far, of a number that is read by ``float()`` or ``item()``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import rewritten, run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]


@pytest.mark.parametrize("read", ["float(cost.min())", "cost.min().item()"])
def test_the_best_so_far_is_kept_of_tensors_however_it_is_read(read: str, tmp_path: Path) -> None:
    # GIVEN a step whose next lines go on with the smallest cost so far
    program = f"""
class Search:
    def __init__(self):
        self.best = float("inf")
    def step(self, x):
        cost = (x * 2).pow(2)
        self.best = min(self.best, {read})
        return cost - self.best
search = Search()
args = (torch.ones(4).to(device),)
"""
    names = run(program, tmp_path)
    # WHEN diagnosed
    (told,) = [f.fix for f in pgk.diagnose(names["search"].step, *names["args"]) if f.code == "sync-item"]
    # THEN what is compared is the tensor, and no number of it
    assert told.endswith("after   self.best = torch.where(cost.min() < self.best, cost.min(), self.best)")


def test_an_entry_at_the_largest_score_is_looked_up_on_the_device(tmp_path: Path) -> None:
    # GIVEN a sampler that takes the token of the largest score, in one expression
    program = """
args = (torch.rand(8).to(device),)
def f(x):
    order = x.argsort(descending=True)
    token = order[(x / x.sum()).argmax()]
    return token, x[x.argmin()] * 2
"""
    # WHEN a fix is asked for, and captured over ten other steps
    found = rewritten(program, tmp_path)
    # THEN both are looked up there
    assert found.complete
    assert "order[(x / x.sum()).argmax().reshape(1)][0]" in found.diff
    assert "x[x.argmin().reshape(1)][0] * 2" in found.diff
