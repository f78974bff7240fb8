"""Lists of numbers among the arguments: a table of graphs goes by what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")


@pytest.mark.parametrize(
    ("given", "key", "count"),
    [
        ([1, 2, 2, 1, 3], "graphs[str(sizes)]", "sum(sizes)"),
        (dict.fromkeys("abcde", 1), "graphs[str(sizes)]", "sum(sizes.values())"),
        (2, "graphs[sizes]", "sizes"),
    ],
)
def test_a_list_of_numbers_is_told_as_a_key_that_a_table_takes(
    given: object, key: str, count: str, tmp_path: Path
) -> None:
    # GIVEN a function whose sizes come in a list, or as a number
    text = "def step(x, sizes):\n    return torch.zeros(COUNT, device=device) + x.sum()\n"
    step = run(text.replace("COUNT", count), tmp_path)["step"]
    # WHEN it is diagnosed
    told = [f.fix for f in pgk.diagnose(step, torch.ones(3, device=pgk.device()), given).failures]
    # THEN the table of graphs goes by something that can be its key
    assert any(key in fix for fix in told), told
