"""Rows that a mask keeps and that are then picked by their places: zeros in between would take these places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten, run
from tests.programs.running import differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
TEXT = """
kinds = torch.arange(3).repeat(4).to(device)
args = (torch.randn(12, 4, device=device),)
def f(z):
    labels = kinds
    protos = []
    for c in range(3):
        members = z[labels == c]
        protos.append({}.mean(0))
    return torch.stack(protos)
"""
FIRST = "members = z[(~(labels == c)).byte().argsort(stable=True)]"
LAST = "members = z[(labels == c).byte().argsort(stable=True)]"


@pytest.mark.parametrize(
    ("picked", "line"),
    [
        ("members[:2]", FIRST),
        ("members[1:4]", FIRST),
        ("members[0:3:2]", FIRST),
        ("members[3][None]", FIRST),
        ("members[:2, 1:]", FIRST),
        ("members[-3:]", LAST),
        ("members[-3:-1]", LAST),
        ("members[-2][None]", LAST),
    ],
)
def test_those_that_are_kept_come_at_the_end_that_is_picked_from(tmp_path: Path, picked: str, line: str) -> None:
    # GIVEN a mask's rows of which some are picked by their places
    text = TEXT.format(picked)
    # WHEN the advice is asked THEN no zeros stand between them
    advice = str(rewritten(text, tmp_path))
    assert "zeros elsewhere" not in advice
    assert line in advice
    # AND the line that it gives has the same numbers, in another order of rows
    changed = text.replace("members = z[labels == c]", line)
    assert not differences(eager(run(text, tmp_path), "f"), eager(run(changed, tmp_path), "f"), set())


@pytest.mark.parametrize("picked", ["members[1:]", "members[:-1]", "members[::2]", "members[1:-1]"])
def test_up_to_where_they_end_is_not_advised(tmp_path: Path, picked: str) -> None:
    # GIVEN rows up to the last of those that are kept, which is where the others begin
    advice = str(rewritten(TEXT.format(picked), tmp_path))
    # THEN neither order nor zeros are advised
    assert "argsort" not in advice
    assert "zeros elsewhere" not in advice


@pytest.mark.parametrize("picked", ["members[:, 1:]", "members[members > 0]"])
def test_columns_and_values_of_them_are_no_places(tmp_path: Path, picked: str) -> None:
    # GIVEN a column of all that are kept, and those of another mask THEN no order is needed
    assert "argsort" not in str(rewritten(TEXT.format(picked), tmp_path))
