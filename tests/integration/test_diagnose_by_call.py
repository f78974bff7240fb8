"""What differs among a few calls: what only the first does, and numbers that lie beside tensors."""

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


MIXED = """
state = {"h": torch.zeros(3, device=device), "n": 0, "rate": 0.5}
args = (torch.randn(3, device=device),)
@torch.no_grad()
def f(x):
    h = state["h"] * 0.9 + x * state["rate"]
    state["h"] = h
    state["n"] += 1
    state["rate"] *= 0.9
    return h.sum()
"""


def test_numbers_of_a_dictionary_that_has_tensors_too_are_told_each_at_its_line(tmp_path: Path) -> None:
    # GIVEN a state of one dictionary, with a tensor and two numbers that all are others in each call WHEN diagnosed
    names = run(MIXED, tmp_path)
    told = {(f.code, f.frame.text.strip()) for f in pgk.diagnose(names["f"], *names["args"]).failures if f.frame}
    # THEN each number is a problem where it is moved, and the tensor where it is read
    assert ("host-counter", 'state["n"] += 1') in told, told
    assert ("host-counter", 'state["rate"] *= 0.9') in told, told
    assert ("stale-input", 'h = state["h"] * 0.9 + x * state["rate"]') in told, told
    assert not any(code == "output-alias" for code, _ in told), told


RESTING = """
net = nn.Linear(3, 2).to(device)
class Spotter:
    rest, made = 0, None
    def push(self, x):
        p = net(x).sigmoid().mean()
        if self.rest > 0:
            self.rest -= 1
            return 0
        if self.made is None:
            self.made = torch.ones(3, device=device).nonzero()
        if p.item() > -1:
            self.rest = 3
        return 1
spotter = Spotter()
args = (torch.randn(4, 3, device=device),)
def f(x):
    return spotter.push(x)
"""


def test_what_a_return_leaves_out_is_told_where_a_count_decides_it(tmp_path: Path) -> None:
    # GIVEN a detector that rests for some calls after each event, and makes something once WHEN diagnosed
    names = run(RESTING, tmp_path)
    told = {(f.code, f.frame.text.strip()) for f in pgk.diagnose(names["f"], *names["args"]).failures if f.frame}
    # THEN what it reads in the others is a problem, and what it makes once is none
    assert ("sync-item", "if p.item() > -1:") in told, told
    assert not any(code == "dynamic-shape" for code, _ in told), told
