"""One program, spelt in several ways: where state is kept, and how it is written, decides nothing of what is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

DEVICE = pgk.device()
STATE: list[Any] = [0, torch.zeros(2, 4, device=DEVICE), torch.zeros(2, 4, device=DEVICE)]


class Rows:
    """Keeps results in a list with a name of its own."""

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []

    @property
    def rows(self) -> list[torch.Tensor]:
        return self._rows

    def by_property(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.rows.append(y.mean())
        return y

    def by_alias(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        kept = self._rows
        kept.append(y.mean())
        return y

    def by_method(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        list.append(self._rows, y.mean())
        return y

    def by_asking(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 + len(self.rows))


def counts_in_a_list(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    STATE[1][STATE[0] % 2] = y[0]
    STATE[0] += 1
    return y


def keeps_its_argument(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = x - STATE[2]
    STATE[2] = x
    return y


def exchanges_an_entry(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = x - STATE[1]
    STATE[1] = x.clone()
    return y


def reads_entries(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = x - STATE[1] - STATE[2]
    return y


def writes_an_entry(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = x - STATE[1]
    STATE[1].copy_(x)
    return y


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Rows().by_property, [("output-alias", "self.rows.append(y.mean())")]),
        (Rows().by_alias, [("output-alias", "kept.append(y.mean())")]),
        (Rows().by_method, [("output-alias", "list.append(self._rows, y.mean())")]),
        (Rows().by_asking, []),
        (
            counts_in_a_list,
            [("size-frozen", "STATE[1][STATE[0] % 2] = y[0]"), ("host-counter", "STATE[0] += 1")],
        ),
        (keeps_its_argument, [("stale-input", "STATE[2] = x")]),
        (exchanges_an_entry, [("stale-input", "y: torch.Tensor = x - STATE[1]")]),
        (reads_entries, []),
        (writes_an_entry, []),
    ],
)
def test_where_state_is_kept_decides_nothing(
    function: Callable[[torch.Tensor], torch.Tensor], expected: list[tuple[str, str]]
) -> None:
    # GIVEN state in a list, by its index, and one behind a property, another name or a method of its class
    # WHEN diagnosed
    found = pgk.diagnose(function, torch.randn(2, 4, device=DEVICE))
    # THEN each is told at the line that writes or reads it, once, and what only reads is not told
    assert sorted((f.code, f.frame.text) for f in found.failures if f.frame) == sorted(expected)


def waits_with_kinds(x: torch.Tensor) -> torch.Tensor:
    m: float = x.abs().mean().item()
    if m > 0.5:
        x = x / m
    return x * 2


def picks_with_kinds(x: torch.Tensor) -> torch.Tensor:
    keep: torch.Tensor = x > 0
    kept: torch.Tensor = x[keep]
    m: torch.Tensor = kept.mean()
    return x * m


def test_what_names_are_said_to_be_decides_nothing() -> None:
    # GIVEN a branch on a number that was read, whose name is said to be a float WHEN diagnosed
    found = pgk.diagnose(waits_with_kinds, torch.randn(2, 4, device=DEVICE))
    # THEN the branch is told beside the read, as of `m = ...`
    told = [(f.code, f.frame.text) for f in found.failures if f.frame]
    assert told == [("sync-item", "m: float = x.abs().mean().item()"), ("branch-frozen", "if m > 0.5:")]


@pytest.mark.sweep
def test_lines_whose_names_are_said_to_be_something_are_rewritten() -> None:
    # GIVEN a mask and what it picks, with kinds WHEN it is rewritten
    fix = pgk.diagnose(picks_with_kinds, torch.randn(2, 4, device=DEVICE), fix=True).fix
    # THEN the diff is whole
    assert fix is not None
    assert fix.complete
