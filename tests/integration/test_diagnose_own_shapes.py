"""What is written where a capture's shapes, its key or the order of its launches are not what its program needs."""

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
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftysecond_own3.txt")
WORDS = {
    "searched anew": "this line as it is, and a new capture behind it: no copy makes the tensor of this one as large",
    "number of nodes": "a graph for each shape: in self.graphs, `key = (x.shape[0], edge.shape)` in line ",
    "that shrinks": "this line as it is, and behind it `self.graph = None`, so that the next call captures again",
    "kept by shape": "in self.cache, `key = (tuple(x.shape), self.inner[1].training)` in line ",
    "has not computed yet": "h.copy_(last), moved behind g.replay() in line ",
    "ahead of the replay that makes": "static_obs.copy_(obs), moved behind g.replay() in line ",
    "that move the state": "behind it `if n not in graphs:` a new capture goes to `graphs[n]`, which reads `self.x[:n]",
}


@pytest.mark.parametrize("title", WORDS)
def test_the_words_fit_how_the_program_launches(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose capture has a shape, a key or a place of its own
    # WHEN it is diagnosed
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN what is told works when it is followed to the letter
    assert WORDS[title] in found.failures[0].fix
    # AND what it ends in, which comes of a shape, is no problem of its own
    assert [f.code for f in found.failures if f.code == "raises"] == []
