"""Lines that only tell of a tensor wait with a copy of it; those that give it another value do more than tell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.loops.one_round import kept_for_later
from paramgraph_kit.rewrite.source.edits import Source

ROUND = """for x in data:
    loss = net(x)
    LINE
    loss = loss + 1
    loss.backward()
"""


@pytest.mark.parametrize(
    ("line", "waits"),
    [("log.append(loss.item())", True), ("loss = loss * weight(n)", False), ("loss *= weight(n)", False)],
)
def test_a_line_that_sets_what_it_reads_has_no_copy(line: str, waits: bool, tmp_path: Path) -> None:
    # GIVEN a line between a loss and another value of it, which the host has a part in
    file = tmp_path / "program.py"
    file.write_text(ROUND.replace("LINE", line))
    source = Source.of(str(file))
    assert source is not None
    loop = source.tree.body[0]
    assert isinstance(loop, ast.For)
    # WHEN it is asked whether it may wait
    found = kept_for_later(source, loop, lambda _: True, lambda node: node is loop.body[1], {"loss"})
    # THEN it does with a copy, unless the lines below read what it has made of it
    assert bool(found) is waits
