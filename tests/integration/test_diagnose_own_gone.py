"""A tensor that a graph reads and that is gone is told, whatever else its line reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import read
from tests.programs.running import diagnosed, load, quiet

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nobody has noted what was freed before")
@pytest.mark.filterwarnings("ignore:the simulated device does not know")
def test_so_it_is_where_the_capture_was_made_before_anybody_looked(tmp_path: Path) -> None:
    # GIVEN
    program = next(each for each in PROGRAMS if MASK in each.title)
    names = load(program.broken, tmp_path / "program.py")
    with quiet():
        for _ in range(3):
            names["forward"](*names["args"])
        # WHEN
        found = pgk.diagnose(names["forward"], *names["args"])
    # THEN
    assert {f.code for f in found.failures} == {"freed-input", "stale-input"}
