"""What only the first of a few calls does: told where a test that decides it is a problem, not where it is made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

PAIRS = """
class Box:
    def __init__(self):
        self.pos, self.n, self.pairs = torch.rand(6, 2, device=device), 0, None
    def near(self):
        d = torch.cdist(self.pos, self.pos)
        return torch.where(torch.triu(d < 0.5, diagonal=1))
    def rebuild(self):
        return self.near()
    def step(self, dt):
        if {test}:
            self.pairs = self.rebuild()
        i, j = self.pairs
        self.pos.index_add_(0, i, dt * (self.pos[j] - self.pos[i]))
        self.n += 1
        return self.pos.sum()
box = Box()
args = (torch.tensor(0.1, device=device),)
def f(dt):
    return box.step(dt)
"""


@pytest.mark.parametrize(("test", "told"), [("self.n % 5 == 0", True), ("self.pairs is None", False)])
def test_a_helper_that_the_first_call_alone_comes_to_is_told_where_a_count_decides(
    test: str, told: bool, tmp_path: Path
) -> None:
    # GIVEN a list of pairs that is made in the first call, by a helper of a helper WHEN diagnosed
    names = run(PAIRS.format(test=test), tmp_path)
    found = {(f.code, f.frame.text.strip()) for f in pgk.diagnose(names["f"], *names["args"]).failures if f.frame}
    # THEN its size is a problem where the pairs are made again now and then
    assert ("dynamic-shape" in {code for code, _ in found}) is told, found
