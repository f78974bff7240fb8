"""Learners that keep their first batch as the graph's input: what copies later ones there spoils the caller's own."""

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
class Learner:
    def __init__(self):
        self.w = torch.ones(4, device=device)
    def set_batch(self, batch):
        KEEP
    def update(self):
        self.w.mul_(0.9).add_(self.x + self.y)
        return self.w.sum()
    def capture(self, batch):
        self.set_batch(batch)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.update()
    def step(self, batch):
        self.set_batch(batch)
        self.graph.replay()
        return self.out.clone()
def main():
    learner, losses = Learner(), []
    BATCHES
    for batch in ROUNDS:
        losses.append(learner.step(batch))
    return torch.stack(losses)
"""
LINE = "self.x, self.y = batch"
COPIES = """if hasattr(self, 'x'):
            self.x.copy_(batch[0])
            self.y.copy_(batch[1])
        else:
            FIRST"""
CLONED = "self.x, self.y = [t.clone() if isinstance(t, torch.Tensor) else t for t in batch]"
BUFFER = """buffer = [[torch.full((4,), float(i), device=device) for _ in range(2)] for i in range(3)]
    learner.capture(buffer[0])"""
OWN = """static = [torch.zeros(4, device=device) for _ in range(2)]
    learner.capture(static)
    buffer = [[torch.full((4,), float(i), device=device) for _ in range(2)] for i in range(3)]"""
FILLED = """static = [torch.zeros(4, device=device) for _ in range(2)]
    learner.capture(static)
    def filled(i):
        for own in static:
            own.fill_(i)
        return static
    learner.step([torch.ones(4, device=device) for _ in range(2)])"""


def told(tmp_path: Path, keep: str, rounds: str = "buffer[1:]", batches: str = BUFFER) -> list[tuple[str, str, str]]:
    """What is told of such a program, at which lines, with the words."""
    program = PROGRAM.replace("KEEP", keep).replace("ROUNDS", rounds).replace("BATCHES", batches)
    names = load(PRELUDE + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["main"]).failures
    return [(f.title, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


def test_words_for_a_batch_that_is_exchanged_begin_with_a_copy_of_the_first(tmp_path: Path) -> None:
    # GIVEN a learner that gives its attributes the tensors of each batch
    # WHEN it is diagnosed
    found = told(tmp_path, LINE)
    # THEN the words copy later ones, and the first is cloned
    assert [line for _, line, _ in found] == [LINE]
    assert found[0][2].count(f"and else this line with `{CLONED.partition(' = ')[2]}` for `batch`") == 2


def test_a_first_batch_that_is_spoilt_and_comes_again_is_told(tmp_path: Path) -> None:
    # GIVEN one that copies into the first batch itself, which comes again in a second epoch
    keep = COPIES.replace("FIRST", LINE)
    # WHEN it is diagnosed
    found = told(tmp_path, keep, "[*buffer[1:], *buffer]")
    # THEN the line that keeps it is told, and a copy is what is said
    words = f"this line with `{CLONED.partition(' = ')[2]}` for `batch`"
    assert found == [("A graph's input is the caller's own tensor", LINE, words)]


@pytest.mark.parametrize(
    ("first", "rounds", "batches"),
    [
        (CLONED, "[*buffer, *buffer]", BUFFER),  # as the words say
        pytest.param(LINE, "buffer[1:]", BUFFER, marks=pytest.mark.sweep),  # nobody reads it again
        pytest.param(LINE, "[*buffer, *buffer]", OWN, marks=pytest.mark.sweep),  # made for that
        (LINE, "map(filled, range(3))", FILLED),  # the caller's own business
    ],
)
def test_a_first_batch_of_its_own_is_no_problem(first: str, rounds: str, batches: str, tmp_path: Path) -> None:
    # GIVEN one that has a copy, one whose first batch nobody uses again, and static ones that the caller fills itself
    # WHEN they are diagnosed
    # THEN nothing is told
    assert told(tmp_path, COPIES.replace("FIRST", first), rounds, batches) == []
