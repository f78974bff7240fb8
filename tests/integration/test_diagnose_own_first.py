"""States that a graph moves whose capture is in the first call: they are as they were when a diagnosis is over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import Program, read
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfourth_first.txt")


@pytest.mark.parametrize("program", [pytest.param(each, id=each.title) for each in PROGRAMS])
def test_a_state_that_only_replays_move_is_put_back(program: Program, tmp_path: Path) -> None:
    # GIVEN a program whose first call captures what moves a state, and replays it perhaps
    names = load(program.mended, tmp_path / "program.py")
    held = vars(names["step"].__self__)
    before = {name: value.clone() for name, value in held.items() if isinstance(value, torch.Tensor)}
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], *names["args"])
    # THEN nothing is told, and all states are as they were
    assert not found.failures
    assert all(torch.equal(held[name], value) for name, value in before.items())
