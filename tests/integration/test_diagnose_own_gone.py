"""A tensor that a graph reads and that is gone is told, whatever else its line reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.reading import read
from tests.programs.running import diagnosed

pytestmark = pytest.mark.usefixtures("recovered")
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfourth_ownb.txt")
MASK = "a mask of the capturing function's own"


def test_a_tensor_that_is_gone_is_told_beside_one_that_is_exchanged_at_the_same_line(tmp_path: Path) -> None:
    # GIVEN a line of a graph that reads a mask of a function that has ended, and weights that each call exchanges
    # WHEN
    found = diagnosed(PROGRAMS, MASK, tmp_path / "program.py")
    # THEN
    said = {f.code: f for f in found.failures}
    assert {*said} == {"freed-input", "stale-input"}
    assert "mask, which it reads here, is gone" in said["freed-input"].message
    assert said["freed-input"].fix.endswith("behind it: self.graph.reads = (mask,)")
