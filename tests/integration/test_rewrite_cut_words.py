"""Where what is captured is told to end, all is told that comes behind the launch and was found before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.asks.cut_here import cut_where_it_is_read
from paramgraph_kit.rewrite.advised.otherwise import at_least
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Form, Place
from paramgraph_kit.trace.model import Failure

STEP = """
def f(pos, vel, wind):
    acc = torch.tanh(pos) + wind
    unused = acc * 2
    speed = vel.norm().item()
    dt = min(0.02, 0.05 / speed)
    if speed > 3:
        return vel
    vel = vel + dt * acc
    return vel
"""
TOLD = {
    "before a line": (6, "data-dependent-branch", at_least, "before line 6, return `acc`, `speed`, and do that line"),
    "at a line": (
        5,
        "sync-item",
        cut_where_it_is_read,
        "end what is captured here, return `vel.norm()`, with `acc`, and",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_all_that_comes_behind_a_cut_and_was_found_before_it_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a number that decides what a step does, with a tensor that is read behind it, and one that is not
    line, code, advice, wanted = TOLD[name]
    told_by: Callable[[Place], str] = advice
    file = tmp_path / "program.py"
    file.write_text(STEP)
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    held = {each: Form.of(torch.zeros(2)) for each in ("acc", "unused")}
    # WHEN it is told that what is captured ends there THEN the tensor is returned, too
    told = told_by(Place(source, statement, Failure(code, "", ""), "device", {"torch": torch}, tensors=held))
    assert wanted in told, told
