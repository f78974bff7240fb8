"""Words for parts of tensors whose place an object counts, by a number of its own or one of a list."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
CACHE = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Cache:
    def __init__(self):
        self.rows, self.at, self.ats = torch.zeros(2, 32, 3, device=device), 0, [0, 0]
    def step(self, x):
        self.rows[:, PLACE : PLACE + x.shape[1]] = x
        read = self.rows[:, : PLACE + x.shape[1]]
        PLACE += x.shape[1]
        return read.sum(1)
f = Cache().step
"""


@pytest.mark.parametrize("place", ["self.at", "self.ats[0]"])
def test_a_counted_place_is_named_as_it_is_written(place: str, tmp_path: Path) -> None:
    # GIVEN rows that are written at a place which the object counts WHEN it is diagnosed, without a trial
    names = load(CACHE.replace("PLACE", place), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], torch.ones(2, 1, 3, device=pgk.device()))
    # THEN the words keep that number as a tensor, and read and write by it
    said = " ".join(f.fix for f in diagnosis)
    assert f"`self.rows.index_copy_(1, {place} + torch.arange(x.shape[1], device=device), x)`" in said, str(diagnosis)
    assert f"keep `{place}` as a tensor" in said, str(diagnosis)
    assert f"< {place} + x.shape[1]`" in said, str(diagnosis)
    assert f"stays as it is once `{place}` is a tensor" in said, str(diagnosis)


LAYERS = """import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.filled = torch.zeros(2, 32, 3, device=device), [0]
    def forward(self, x):
        self.rows[:, self.filled[0]] = x
        self.filled[0] += 1
        return self.rows.sum(1)
class Decoder:
    def __init__(self):
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.out, self.filled = torch.zeros(2, 32, device=device), 0
    def begin(self):
        for each in self.layers:
            each.filled[0] = 0
        self.filled = 0
    def step(self, x):
        self.out[:, self.filled] = x.sum(1)
        self.filled += 1
        for each in self.layers:
            x = each(x)
        return x
f = Decoder().step
"""


def test_what_another_function_sets_is_noted_at_the_line_that_reads_it_and_once(tmp_path: Path) -> None:
    # GIVEN places that a step counts by itself, in two layers and beside them, and a method that begins them again
    names = load(LAYERS, tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], torch.ones(2, 3, device=pgk.device()))
    # THEN each is noted once, at a line that reads it
    notes = [note for note in diagnosis.notes if " sets it" in note]
    assert len(notes) == len(set(notes)), str(diagnosis)
    of_layers = [note for note in notes if note.startswith("self.filled[0]")]
    assert ["self.rows[:, self.filled[0]] = x" in note for note in of_layers] == [True], str(diagnosis)
    assert any(note.startswith("self.filled is") and "self.out[:, self.filled]" in note for note in notes)
