"""Words for caches that another function cuts: these are windows, and none of them grows without end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")

HEAD = """
class Attention:
    def __init__(self, window=3):
        self.window, self.k, self.past = window, None, None
    def trim(self):
        if self.k.shape[1] > self.window:
            self.k = self.k[:, -self.window:]
    def evict(self, k, v):
        if k.shape[1] <= self.window:
            return k, v
        return k[:, -self.window:], v[:, -self.window:]
    def back(self, n):
        self.k = self.k[:, :n]
"""
BY_A_METHOD = """
    def step(self, x):
        self.k = x if self.k is None else torch.cat([self.k, x], 1)
        self.trim()
        return self.k.sum(1)
"""
MENDED_METHOD = """
    def step(self, x):
        new = (x if self.k is None else torch.cat([self.k, x], 1))[:, -self.window:]
        self.k = self.k.copy_(new) if self.k is not None and self.k.shape == new.shape else new
        return self.k.sum(1)
"""
ON_ITS_WAY = """
    def step(self, x):
        k, v = x, x + 1
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 1), torch.cat([self.past[1], v], 1)
        k, v = self.evict(k, v)
        self.past = (k, v)
        return k.sum(1) * v.sum(1)
"""
STORES = "        self.past = (k, v)\n"
MENDED_STORE = """        new = (k, v)
        self.past = new if self.past is None or self.past[0].shape != new[0].shape else tuple(old.copy_(each) for old, \
each in zip(self.past, new))
"""
END = """
attention = Attention()
for _ in range(4):
    attention.step(torch.randn(1, 1, 4).to(device))
step = attention.step
"""


def _told(program: str, folder: Path) -> str:
    space = run(HEAD + program + END, folder)
    found = pgk.diagnose(space["step"], torch.randn(1, 1, 4).to(space["device"]))
    return " ".join(str(found).split())


@pytest.mark.parametrize(
    ("program", "words", "mended"),
    [
        pytest.param(BY_A_METHOD, MENDED_METHOD.splitlines()[2:4], MENDED_METHOD, id="by a method"),
        pytest.param(ON_ITS_WAY, MENDED_STORE.splitlines(), ON_ITS_WAY.replace(STORES, MENDED_STORE), id="on its way"),
    ],
)
def test_what_a_helper_cuts_is_a_window(program: str, words: list[str], mended: str, tmp_path: Path) -> None:
    # GIVEN a cache that a helper cuts to the last so many WHEN diagnosed
    told = _told(program, tmp_path)
    # THEN the words write the window in place once it is full, and none says that it grows
    assert all(" ".join(line.split()) in told for line in words), told
    assert "grows at each step" not in told
    # AND a step that follows them to the letter has no problems, and gives the same
    (tmp_path / "mended").mkdir()
    assert "no problems" in _told(mended, tmp_path / "mended")
    first, second = (run(HEAD + each + END, tmp_path / "mended") for each in (program, mended))
    first["attention"].k = first["attention"].past = second["attention"].k = second["attention"].past = None
    for x in torch.randn(8, 1, 1, 4).to(first["device"]):
        assert torch.equal(first["step"](x), second["step"](x))


@pytest.mark.sweep
def test_what_is_cut_back_is_a_number_beside_it(tmp_path: Path) -> None:
    # GIVEN a cache that is cut back to what was accepted, as in speculative decoding WHEN diagnosed
    back = BY_A_METHOD.replace("self.trim()", "self.back(self.k.shape[1] - self.window % 2)")
    told = _told(back.replace("self.back(", "self.window += 1\n        self.back("), tmp_path)
    # THEN the cut is the number beside the room that the other line's words make
    assert "this line becomes `self.filled = n`" in told, told
