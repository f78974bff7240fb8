"""What a rewritten step returns stays as it is when it is called again, as what the original returned did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.provisos import LARGER
from paramgraph_kit.rewrite.returned import KEPT
from tests.integration.rewritten import Fixed, changed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

HELD = """
class State:
    def __init__(self):
        self.h = torch.zeros(4, device=device)
        self.parts = {{"m": torch.zeros(4, device=device)}}
    def moved(self, x):
        self.h = 0.9 * self.h + x
        return self.h
s = State()
args = (torch.randn(4, device=device),)
def f(x):
{body}
"""
LINES = {  # what a step does, and what it returns then
    "    s.h = torch.tanh(s.h + x)\n    return s.h": "return s.h.clone()",
    "    s.h = torch.tanh(s.h + x)\n    out = s.h\n    return {'y': out}": "out = h_now",
    "    y = s.moved(x)\n    return y, y * 2": "return self.h.clone()",
    "    s.parts['m'] = torch.maximum(s.parts['m'], x)\n    return s.parts['m'][:2]": "return s.parts['m'][:2].clone()",
}


@pytest.mark.parametrize("body", LINES)
def test_a_state_that_is_returned_is_copied_where_it_is_written_in_place(
    body: str, tmp_path: Path, fixed: Fixed
) -> None:
    # GIVEN a step that gives a state another tensor, and returns that: callers keep it
    text = HELD.format(body=body)
    # WHEN it is rewritten in place
    fix = fixed(text)
    # THEN it is whole, and returns a copy, or what is copied to the state; of the user's own `maximum` nothing is told
    assert fix.complete, fix
    assert LINES[body] in lines_of(fix)
    assert LARGER not in fix.verified
    # AND what ten calls of the rewritten function return is what the original returned, when all have been made
    names, other = run(text, tmp_path), run(text, tmp_path)
    found: object = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    given = [torch.randn(4, device=pgk.device()) for _ in range(10)]
    expected = [other["f"](x) for x in given]
    with found.applied():  # type: ignore[attr-defined]
        kept = [names["f"](x) for x in given]
    torch.testing.assert_close(kept, expected)


def test_where_no_copy_is_sure_it_is_told_and_a_container_that_is_returned_each_time_has_what_is_there_now(
    fixed: Fixed,
) -> None:
    # GIVEN a state that is returned in an object, of which the lines make a new one, and a dictionary that stays
    made = "    s.h = torch.tanh(s.h + x)\n    return vars(s) | {}"
    stays = "    s.parts['m'] = torch.tanh(s.parts['m'] + x)\n    return s.parts"
    # WHEN THEN only of the first callers have something else than they had
    assert KEPT.format("it") in fixed(HELD.format(body=made)).verified
    fix = fixed(HELD.format(body=stays))
    assert fix.complete, fix
    assert KEPT.format("it") not in fix.verified
    assert len(changed(fix.diff)) == 2


def test_only_what_later_steps_change_is_overwritten() -> None:
    # GIVEN steps that return a tensor of their own, one that stays as it is, and one that they write
    device = pgk.device()
    constant, state = torch.ones(2, device=device), torch.zeros(2, device=device)
    prover = Prover(lambda x: (x * 2, constant, state.add_(x)), (torch.ones(2, device=device),), {})
    # WHEN they have run
    prover.eager()
    # THEN the last is another value by then
    assert prover.overwritten == {1: False, 2: True}


FIRST_STATE = """\
x0 = torch.zeros(4).to(device)
args = (torch.randn(4).to(device),)
class Filter:
    def __init__(self, x):
        self.x = x
    def step(self, z):
        self.x = self.x * 0.9 + torch.sigmoid(z - self.x)
        return self.x
kept = Filter(x0)
def f(z):
    return kept.step(z)
"""


def test_a_state_that_has_the_memory_of_another_name_is_told_to_be_cloned(tmp_path: Path) -> None:
    # GIVEN a state that began as a tensor which the program has by another name, and which steps write in place now
    names = run(FIRST_STATE, tmp_path)
    # WHEN it is rewritten
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN what to do ahead of the first call is said, without which that name would move
    assert fix.complete, fix
    assert [line for line in fix.verified if line.endswith("before the first call, `kept.x = kept.x.clone()`")], fix
