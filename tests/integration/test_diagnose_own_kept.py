"""What is written where some rounds keep a graph's result, and where a decorator's graph is not given its argument."""

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
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftyfourth_kept.txt")
WORDS = {
    "result object": "top, res.best = (score, self.y.clone())",
    "by a name": "best = self.y.clone()",
    "closure's dict": "static.copy_(x); g.replay()",
}


@pytest.mark.parametrize("title", WORDS)
def test_the_words_are_the_line_as_it_is_to_be(title: str, tmp_path: Path) -> None:
    # GIVEN a program that keeps a graph's memory, or forgets its input
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN one line is told, with what is right there
    assert [f.fix.partition("after   ")[2] for f in found.failures] == [WORDS[title]]
