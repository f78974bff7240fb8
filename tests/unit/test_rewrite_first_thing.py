"""What is said where the host asks before anything runs on the device, in the middle of a loop."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.advised.asks.first_thing import first_thing
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

TICK = """
def tick(is_new, x):
    for slot in range(3):
        if x is not None:
            there = is_new[slot].item()
    BEHIND
"""
WAYS = {
    "return net(x)": "leave the loop before the launch, make what comes after it (from line 6 on) a function that is "
    "given what the loop has made, and capture that",
    "return there": "make what the device does in a round apart from that a function, and capture it",
}


@pytest.mark.parametrize("behind", WAYS)
def test_a_round_that_asks_in_its_middle_is_not_said_to_run_in_pieces(behind: str, tmp_path: Path) -> None:
    # GIVEN a loop at the head of a function, which asks in each round: torch.compile runs such a function as it is
    (tmp_path / "program.py").write_text(TICK.replace("BEHIND", behind))
    source = Source.of(str(tmp_path / "program.py"))
    assert source is not None
    (asks,) = (n for n in ast.walk(source.tree) if isinstance(n, ast.Assign))
    # WHEN explained THEN what is said is what can be captured
    found = first_thing(Place(source, asks, Failure("sync-item", "", ""), "device", entry="tick"))
    assert found.endswith(f"each round of the loop asks here: {WAYS[behind]}")
