"""What is written where a program gives the place of a graph's input another tensor, and of what a graph reads."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

import pytest
import torch

from paramgraph_kit.doctor.observe.ran import has_run, noting
from tests.programs.reading import read
from tests.programs.running import diagnosed

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = read(Path(__file__).parents[1] / "programs" / "own_graphs" / "fiftieth_own.txt")
WORDS = {
    "a server's table of padded inputs": "self.inputs[size].copy_(padded)",
    "named inputs of a runner": "self.static[k].copy_(v)",
    "an entry of a table of entries": "entry['mask'].copy_(mask)",
    "averaged weights": "line 17 keeps `p.data.clone()` in place of that memory itself",
    "ahead of the one that makes": "the other one's replay() ahead of this line",
    "casts that are gone": "dtype=torch.bfloat16, cache_enabled=False): each replay casts again",
    "every few updates": "`graphs[(self.updates % 2 == 0)]`",
}


@pytest.mark.parametrize("title", WORDS)
def test_the_words_are_the_lines_that_bring_it_to_the_graph(title: str, tmp_path: Path) -> None:
    # GIVEN a program whose replays read what was there at their capture
    # WHEN
    found = diagnosed(PROGRAMS, title, tmp_path / "program.py")
    # THEN
    assert WORDS[title] in found.failures[0].fix


def test_only_functions_that_were_called_have_run() -> None:
    # GIVEN two functions
    def called() -> int:
        return 1

    def idle() -> int:
        return 2

    ran = set[CodeType]()
    before = sys.gettrace()
    sys.settrace(None)
    try:
        # WHEN
        with noting(ran, True):
            called()
    finally:
        sys.settrace(before)
    # THEN
    first = called.__code__.co_firstlineno
    assert has_run(ran, __file__, first + 1)
    assert not has_run(ran, __file__, idle.__code__.co_firstlineno + 1)
