"""What is written where a method that has returned has captured, of what its variables meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.examine import NOT_REPLAYED
from tests.programs.reading import read
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfirst_own2.txt")
WORDS = {
    "adapters swapped": "after   self.A.copy_(a['A']); self.B.copy_(a['B'])",
    "quantized weights": "after   `if hasattr(self, 'scale'): self.scale.copy_(s)`, and else this line as it is",
    "offloaded": "ahead of the capture, or capture again behind it",
}


@pytest.mark.parametrize("title", WORDS)
def test_a_line_that_gives_an_object_a_tensor_writes_it_where_it_stands(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose methods give an object other memory than that which its graph reads
    program = next(each for each in PROGRAMS if title in each.title)
    names = load(program.broken, tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names[program.function])
    # THEN the words have the names that the line itself has
    assert WORDS[title] in found.failures[0].fix


def test_a_first_call_whose_capture_fails_leaves_nothing_to_the_next_ones(tmp_path: Path) -> None:
    # GIVEN a runner that sets its graph ahead of a capture which fails
    program = next(each for each in PROGRAMS if "generator" in each.title)
    names = load(program.broken, tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names[program.function])
    # THEN that is told, and that its replays were not looked at
    assert found.codes == ("unregistered-generator",)
    assert NOT_REPLAYED in found.notes
