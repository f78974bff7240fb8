"""One missing copy of a graphed result is told once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.graphed_results import READ
from paramgraph_kit.doctor.observe.kept_once import told_where_kept
from paramgraph_kit.trace.model import Failure, Frame

LOOP = "def main():\n    for x in batches:\n        p = head(x)\n        out.append(p)\n"


def told(file: Path) -> list[Failure]:
    """What is told of the call that gives the result, and of the line that keeps it."""
    call = Frame(str(file), 3, "main", "p = head(x)")
    keeps = Frame(str(file), 4, "main", "out.append(p)")
    kept = BY_ID["output-alias"].failure("it is kept as it is", keeps)
    fix = "before  out.append(p)\nafter   out.append(p.clone())"
    return [BY_ID["output-alias"].failure(READ, call), replace(kept, fix=fix)]


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        pytest.param("", [4], id="the list alone"),
        pytest.param("        last = p\n", [3, 4], id="another name holds it"),
        pytest.param("    return p\n", [3, 4], id="it is read behind the loop"),
    ],
)
def test_a_result_that_one_line_keeps_is_told_at_that_line(more: str, lines: list[int], tmp_path: Path) -> None:
    # GIVEN a loop that keeps what a graphed callable gives, and perhaps reads it elsewhere, too
    (file := tmp_path / "program.py").write_text(LOOP + more)
    # WHEN what was told of both lines is gone through
    found = told_where_kept(told(file), READ, [str(file)])
    # THEN the copy is asked for once, where that is enough
    assert [f.frame.line for f in found if f.frame] == lines
