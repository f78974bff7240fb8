"""What is written where a wrapper forgets an input, fills it behind the replay, or keeps what its capture fills."""

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
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftythird_own3.txt")
WORDS = {
    "capture of before fills": "before  acts.append(bufs.act)\nafter   acts.append(bufs.act.clone())",
    "first argument alone": "before  self.graph.replay()\nafter   self.static[1].copy_(args[1]); self.graph.replay()",
    "at the capture alone": "before  graph.replay()\nafter   sm.copy_(mask); graph.replay()",
    "copies behind": "before  y = head.launch()\nafter   head.feed(x) ahead of this line",
    "whose field is forgotten": "before  self.g.replay()\nafter   "
    "self.batch.mask.copy_(what eager code has there of done); self.g.replay()",
    "named by setattr": "before  setattr(s, 'bias', bias)\nafter   s.bias.copy_(bias), ahead of graph.replay()",
    "closure of a builder": "after   this line as it is, and behind the capture: g.reads = (x, window)",
}


@pytest.mark.parametrize("title", WORDS)
def test_what_a_wrapper_forgets_is_written_as_its_lines_have_it(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose class, or helper, does not bring its graph what a call gives
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN one problem is told, with lines that work when they are followed to the letter
    assert [WORDS[title] in failure.fix for failure in found.failures] == [True]
