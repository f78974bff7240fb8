"""A tensor for a number that a capture reads is made ahead of it, also where an ``__init__`` captures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Base:
    def record(self):
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.body()
    def prepare(self):
        self.body()
        self.record()
def warmed(owner):
    owner.prepare()
class Head(Base):
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.graph = torch.randn(4, 3, device=device), None
        self.x, self.scale = torch.zeros(2, 4, device=device), 1.0
        INIT
    def body(self):
        return torch.softmax(READ, -1)
    def __call__(self, x, scale):
        if self.graph is None:
            self.record()
        self.scale = scale
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
def main():
    head = Head()
    return [head(torch.full((2, 4), i + 1.0, device=device), 0.5 + i / 4).cpu() for i in range(4)]
"""
READS = ("self.x @ self.w / self.scale", "torch.tanh((self.x @ self.w).sub(self.x.sum(), alpha=self.scale))")
AHEAD, BEHIND = "in `__init__`, ahead of the first capture", "at the end of `__init__`"


def told(tmp_path: Path, init: str, read: str) -> list[tuple[str, str]]:
    """What is told of such a program, with what is written there."""
    names = load(PRELUDE + PROGRAM.replace("INIT", init).replace("READ", read), tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["main"]).failures
    # whether a product was run in this process before is another question
    return [(f.code, f.fix) for f in found if f.code != "cold-library"]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("init", "where"),
    [
        ("self.prepare()", AHEAD),
        ("self.record()", AHEAD),
        ("warmed(self)", AHEAD),
        ("self(self.x, 1.0)", AHEAD),
        ("self.prepared = [self.record]", AHEAD),  # nobody knows who calls it there
        ("self.body()", BEHIND),
    ],
)
def test_what_a_capture_reads_is_made_ahead_of_it(init: str, where: str, read: str, tmp_path: Path) -> None:
    # GIVEN an object whose `__init__` captures, or runs what does, or does not, and a number that each call sets
    # WHEN it is diagnosed
    found = told(tmp_path, init, read)
    # THEN its tensor is made ahead of the capture
    assert [code for code, _ in found] == ["scalar-frozen"]
    assert where in found[0][1], found


POOL = """
class Pool:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.graph = torch.randn(4, 3, device=device), None
        self.x, self.rows = torch.zeros(8, 4, device=device), 8
    def body(self):
        return (self.x @ self.w).sum(0) / self.rows
    def __call__(self, x):
        if self.graph is None:
            self.body()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.body()
        self.rows = x.shape[0]
        READ
        self.graph.replay()
        return self.out.clone()
def main():
    pool = Pool()
    return [pool(torch.ones(8 - i, 4, device=device)).cpu() for i in range(4)]
"""
OWN = "`self.rows_in = torch.full((), float(self.rows)"
ITSELF = "self.rows = torch.full((), float(self.rows)"


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        ("self.x[: self.rows].copy_(x); self.x[self.rows :].zero_()", OWN),
        ("self.x.zero_(); self.x.narrow(0, 0, self.rows).copy_(x)", OWN),
        ("self.x.zero_(); [self.x[i].copy_(x[i]) for i in range(self.rows)]", OWN),
        ("self.x.zero_(); self.x[: x.shape[0]].copy_(x)", ITSELF),
    ],
)
def test_a_number_that_is_one_elsewhere_stays_one(read: str, wanted: str, tmp_path: Path) -> None:
    # GIVEN a number that a capture divides by, and that is a size where the host reads it, or is not read there
    names = load(PRELUDE + POOL.replace("READ", read), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = [(f.code, f.fix) for f in pgk.diagnose(names["main"]).failures]
    # THEN a size stays a number, and the capture reads a tensor beside it
    assert [code for code, _ in found] == ["scalar-frozen"], found
    assert wanted in found[0][1], found
