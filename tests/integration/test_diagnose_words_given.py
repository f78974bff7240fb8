"""A word among the arguments that picks a number of a table is noted; one that decides nothing is not."""

from __future__ import annotations

import torch

import paramgraph_kit as pgk

PENALTY = {"latin": 0.25, "digits": 0.5}


def _read(x: torch.Tensor, script: str = "latin") -> torch.Tensor:
    return x - PENALTY[script]


def _named(x: torch.Tensor, script: str = "latin") -> torch.Tensor:
    assert script in PENALTY
    return x * 2


def test_a_word_that_picks_a_number_is_noted() -> None:
    # GIVEN a function that is given a key of a table of numbers
    x = torch.randn(4).to(pgk.device())

    # WHEN it is diagnosed
    found = pgk.diagnose(_read, x, "latin")

    # THEN that is no problem, as it may be the same in all calls, and a note
    assert not found.failures, found
    assert any("'latin' among the arguments" in each and "'digits'" in each for each in found.notes), found


def test_a_word_that_decides_nothing_is_not() -> None:
    # GIVEN one that only asks whether there is such a key
    x = torch.randn(4).to(pgk.device())

    # WHEN it is diagnosed
    found = pgk.diagnose(_named, x, "latin")

    # THEN nothing is said of it
    assert not found.failures, found
    assert not any("among the arguments" in each for each in found.notes), found
