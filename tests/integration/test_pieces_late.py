"""Pieces that are wrong late alone: many more calls of what is compiled are compared with the function as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.around import NOTHING
from paramgraph_kit.rewrite.proving.proof import Prover, Truth
from paramgraph_kit.verbs._lasting import Later, settles
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

# Dynamo does not drop what a full deque lets go of, in the frame that appends to it (torch 2.13).
TEXT = """\
from collections import deque
class Runner:
    def __init__(self):
        self.n = 0
        self.kept = KEPT
    def step(self, x):
        self.n += 1
        y = x * 0.5
        if self.n % 10 == 0:
            self.kept.append(y)
            LETS_GO
        if self.kept:
            y = y + sum(self.kept) / len(self.kept)
        return y
obj = Runner()
args = (torch.randn(4, 6, device=device),)
"""
FULL = TEXT.replace("KEPT", "deque(maxlen=2)").replace("LETS_GO", "pass")
SOUND = TEXT.replace("KEPT", "[]").replace("LETS_GO", "del self.kept[:-2]")


@pytest.mark.parametrize("entries", [2, 3])
def test_what_is_compiled_has_to_be_right_in_many_more_calls(entries: int, tmp_path: Path) -> None:
    # GIVEN a step that keeps the last two of each tenth result, and what it gives
    names = run(FULL, tmp_path)
    step = names["obj"].step
    prover = Prover(step, names["args"], {})
    later = Later(prover, Truth(prover))

    # WHEN what stands for what is compiled keeps as many, or one more
    def compiled(x: Any) -> Any:
        before = list(names["obj"].kept)
        result = step(x)
        kept = before + [each for each in names["obj"].kept if not any(each is one for one in before)]
        return result if not kept else x * 0.5 + sum(kept[-entries:]) / len(kept[-entries:])

    # THEN sixty calls tell, of which the thirtieth is the first that is wrong
    assert settles(compiled, prover, NOTHING, later) is (entries == 2)


@pytest.mark.sweep
@pytest.mark.parametrize(("text", "right"), [(FULL, False), (SOUND, True)])
def test_a_deque_that_is_full_is_wrong_where_dynamo_compiles_it(text: str, right: bool, tmp_path: Path) -> None:
    # GIVEN the step, and the same with a list that is cut
    names = run(text, tmp_path)
    step = names["obj"].step
    prover = Prover(step, names["args"], {})
    later = Later(prover, Truth(prover))
    # WHEN it is compiled
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="eager")
    # THEN sixty calls tell
    assert settles(compiled, prover, NOTHING, later) is right


@pytest.mark.pieces
@pytest.mark.sweep
def test_no_pieces_are_offered_that_are_wrong_once_a_deque_is_full(tmp_path: Path) -> None:
    # GIVEN the step whose deque is full in its thirtieth call
    names = run(FULL, tmp_path)
    # WHEN it is diagnosed with fix=True THEN it is not told to be compiled
    fix: Any = pgk.diagnose(names["obj"].step, *names["args"], fix=True).fix
    assert not fix.pieces, fix.pieces


@pytest.mark.pieces
@pytest.mark.sweep
def test_pieces_are_offered_of_a_list_that_lets_go(tmp_path: Path) -> None:
    # GIVEN the same with a list that is cut
    names = run(SOUND, tmp_path)
    # WHEN it is diagnosed with fix=True THEN it may be compiled
    fix: Any = pgk.diagnose(names["obj"].step, *names["args"], fix=True).fix
    assert fix.pieces, fix
