"""The quick ones of the programs in the style of strangers' code: ``python -m tests.corpus.strangers`` runs all."""

from __future__ import annotations

import pytest
import torch

from tests.corpus.strangers.program import programs
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
    known = {"changes_model", "skip", "near", "dynamic"}
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
