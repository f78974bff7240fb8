"""Lines that stand where gradients are off keep no graphs where they move to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.closeness import differences
from paramgraph_kit.rewrite.proving.proof import Prover
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
Program = Callable[[str], dict[str, Any]]
SCORER = """
import contextlib
@contextlib.contextmanager
def quiet():
    torch.set_grad_enabled(False)
    yield
    torch.set_grad_enabled(True)
class Scorer:
    def __init__(self):
        self.net, self.last = nn.Linear(4, 4).to(device), None
    def step(self, x):
{body}
        return y.detach()
step = Scorer().step
args = (torch.randn(3, 4, device=device),)
"""
MOVED = ["if y.sum().item() > 0:", "    self.last = self.net(y)"]


def _body(*lines: str) -> str:
    return "\n".join(f"        {line}" for line in lines)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: load(PRELUDE + text, tmp_path / "program.py")
    pgk.diagnose.repair()


OFF, ON = "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"


@pytest.mark.parametrize("off", [OFF, "torch.autograd.set_grad_enabled(mode=False)"])
def test_a_line_that_turns_gradients_off_counts_where_lines_behind_it_move(off: str, program: Program) -> None:
    # GIVEN a step that turns gradients off by a call, and keeps what it computes there by what it reads
    names = program(SCORER.format(body=_body(off, "y = self.net(x)", *MOVED, ON)))
    # WHEN it is rewritten
    fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN they are off behind the launch
    assert fix is not None
    assert fix.complete, fix
    moved = fix.diff.partition("def after_step")[2]
    assert "with torch.no_grad():" in moved, fix.diff


def test_where_they_are_on_again_nothing_turns_them_off(program: Program) -> None:
    # GIVEN the same, but what it keeps is computed where they are on
    names = program(SCORER.format(body=_body(OFF, "y = self.net(x)", ON, *MOVED)))
    # WHEN it is rewritten
    fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN they stay so
    assert fix is not None
    assert fix.complete, fix
    assert "no_grad" not in fix.diff


def test_lines_that_would_keep_graphs_that_were_none_are_taken_back(program: Program) -> None:
    # GIVEN a step that turns them off in a way that no text tells
    names = program(SCORER.format(body=_body("with quiet():", "    y = self.net(x)", *(f"    {m}" for m in MOVED))))
    # WHEN it is rewritten
    fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN what it keeps is not computed behind the launch with gradients
    moved = fix.diff.partition("def after_step(")[2] if fix is not None else ""
    assert "self.last = self.net" not in moved, moved


def test_results_that_keep_graphs_where_none_were_are_told() -> None:
    # GIVEN a result without gradients, and the same of lines that have lost what turned them off
    weight, x = torch.ones(4, device=pgk.device(), requires_grad=True), torch.ones(4, device=pgk.device())
    kept, lost = (Prover(f, (x,), {}).eager() for f in (lambda x: (x * weight).detach(), lambda x: x * weight))
    # WHEN what is seen of both is compared THEN it is told of the one that has them now, and of no other
    assert "whether gradients are kept for what it returns: they are now" in differences(kept, lost)
    assert not any("are kept for" in each for each in differences(lost, kept))
