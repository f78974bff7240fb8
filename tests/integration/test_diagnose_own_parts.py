"""What is written where a wrapper forgets what fills the beginning of a place, or each part of an argument its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.programs.reading import read
from tests.programs.running import diagnosed

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftythird_own4.txt")
WORDS = {
    "positions of a padded batch": "self.positions[:len(positions)].copy_(positions); self.graphs[padded].replay()",
    "targets of micro-batches": "after   self.y.copy_(y); self.graph.replay()",
}


@pytest.mark.parametrize("title", WORDS)
def test_a_part_that_is_forgotten_is_written_as_its_lines_have_it(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose graph reads a part of what a call gives, or has room for more, and nothing brings it there
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN one problem is told, with a line that works when it is followed to the letter
    assert [WORDS[title] in failure.fix for failure in found.failures] == [True]
