"""The quick ones of the programs in the style of strangers' code: ``python -m tests.corpus.strangers`` runs all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import torch

from tests.corpus.strangers.program import Program, Way, programs
from tests.corpus.strangers.running import BAD, WAYS, rows

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
QUICK = {
    "closures_and_defaults": ("parameterized",),
    "copies": ("dynamo", "parameterized"),
    "custom_function": ("parameterized",),
    "inputs_written": ("inputs", "parameterized"),
    "moco": ("parameterized", "step"),
    "outputs_kept_and_changed": ("inputs", "parameterized"),
    "sac": ("step",),
    "threads": ("parameterized",),
    "vae": ("parameterized verified", "step"),
    "wgan_gp": ("step",),
}


def test_every_program_has_a_name_of_its_own_and_known_notes() -> None:
    # GIVEN the programs WHEN their notes are read THEN each is one that is understood, and those that CI runs are there
    known = {"changes_model", "skip", "dynamic"}
    assert all(set(each.notes) <= known for each in programs().values())
    assert len(programs()) > 90
    assert programs().keys() >= QUICK.keys()
    assert {way for ways in QUICK.values() for way in ways} <= WAYS.keys()


@pytest.mark.parametrize("name", QUICK)
def test_a_program_gives_the_same_in_each_way(name: str) -> None:
    # GIVEN a program WHEN it runs in other ways THEN no call gives anything else, at once or later
    found = list(rows(programs()[name], QUICK[name]))
    assert found
    assert [str(row) for row in found if row.word in BAD] == []


@pytest.mark.parametrize(("off", "word"), [(2e-7, "unordered"), (1e-2, "WRONG")])
def test_what_ungraphed_runs_do_not_agree_on_is_told_from_a_wrong_number_by_measuring(off: float, word: str) -> None:
    # GIVEN a program whose runs differ in the last bits, as sums in no fixed order do, and a way that is further off
    runs = count()

    def run(way: Way) -> Iterator[torch.Tensor]:
        way(torch.sin)
        noise = torch.tensor([0.0, 1e-7, 6e-8, 0.0, 9e-8])[next(runs) % 5]
        yield torch.ones(()) + noise + (off if way.wrapped else 0.0)

    # WHEN it is compared THEN only what is farther off than they are from one another is wrong
    (row,) = rows(Program("noisy", run, "", {}), ("parameterized",))
    assert row.word == word
