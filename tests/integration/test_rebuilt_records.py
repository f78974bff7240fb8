"""Records that each step makes anew of the last one: what is told keeps their tensors and counts on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
Program = Callable[[str], dict[str, Any]]
FIELDS = """
import dataclasses, typing
@dataclasses.dataclass(frozen=True)
class Fields:
    mean: torch.Tensor
    n: int
class Row(typing.NamedTuple):
    mean: torch.Tensor
    n: int
args = (torch.randn(4, device=device),)
"""
MERGED = """
kept = {"mean": torch.zeros(4, device=device), "n": 1}
def f(x):
    global kept
    new = 0.9 * kept["mean"] + x / kept["n"]
    kept = {**kept, "mean": new, "n": kept["n"] + 1}
    return new
"""
REPLACED = """
kept = Fields(torch.zeros(4, device=device), 0)
def f(x):
    global kept
    n = kept.n + 1
    kept = dataclasses.replace(kept, mean=kept.mean + (x - kept.mean) / n, n=n)
    return kept.mean
"""
ROW = """
kept = Row(torch.zeros(4, device=device), 1)
def f(x):
    global kept
    kept = kept._replace(mean=kept.mean * 0.5 + x / kept.n, n=kept.n + 1)
    return kept.mean
"""
TOLD = {
    MERGED: ("kept['mean'].copy_(new_mean)", "behind each launch `kept = {**kept, 'n': kept[\"n\"] + 1}`"),
    REPLACED: ("kept.mean.copy_(new_mean)", "behind each launch `kept = dataclasses.replace(kept, n=kept.n + 1)`"),
    ROW: ("kept.mean.copy_(new_mean)", "behind each launch `kept = kept._replace(n=kept.n + 1)`"),
}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: load(PRELUDE + FIELDS + text, tmp_path / "program.py")
    pgk.diagnose.repair()


@pytest.mark.parametrize("text", TOLD, ids=["merged", "replaced", "row"])
def test_its_tensors_stay_and_its_numbers_are_counted_behind_the_launch(text: str, program: Program) -> None:
    # GIVEN a step that makes its record anew of the last one
    names = program(text)
    # WHEN it is asked about
    said = " ".join(str(pgk.diagnose(names["f"], *names["args"], fix=True)).split())
    # THEN what to write keeps the memory that a graph reads, and names nothing that only the step has
    for each in TOLD[text]:
        assert each in said, said


def test_a_record_of_the_steps_own_is_none(program: Program) -> None:
    # GIVEN a step that makes its record anew of one that it has made itself
    names = program(
        "def f(x):\n    kept = Fields(x * 2, 1)\n    kept = dataclasses.replace(kept, mean=kept.mean + x, n=2)\n"
        "    return kept.mean / kept.n\n"
    )
    # WHEN it is asked about THEN nothing is told
    assert not pgk.diagnose(names["f"], *names["args"]).codes
