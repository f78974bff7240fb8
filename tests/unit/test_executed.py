"""Which tests are asked whether they notice a change."""

from __future__ import annotations

import pytest

from scripts.executed import AT_IMPORT, ROOT, Known, candidates, digest

STAGES = "launch/stages.py"


def known(file: str, lines: dict[str, set[int]]) -> Known:
    """A file of tests, and for each of its tests the executed lines of one module."""
    texts = {STAGES: digest(ROOT / "paramgraph_kit" / STAGES)}
    return Known(
        file, dict.fromkeys(lines.keys() - {AT_IMPORT}, 1.0), {t: {STAGES: of} for t, of in lines.items()}, texts
    )


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (30, {"tests/unit/test_launch_stages.py": ["executes"]}),
        # A constant, which importing executes: whoever executes any of it, and who imports it may read it.
        (14, {"tests/unit/test_launch_stages.py": ["executes"], "tests/unit/test_docs_claims.py": ["reads"]}),
    ],
)
def test_who_imports_a_constant_is_asked_too(line: int, asked: dict[str, list[str]]) -> None:
    # GIVEN three files of tests, two of which import a module, and one of which executes some of it
    of = [
        known("tests/unit/test_launch_stages.py", {AT_IMPORT: {14}, "executes": {30, 31}}),
        known("tests/unit/test_docs_claims.py", {AT_IMPORT: {14}, "reads": set()}),
        known("tests/unit/test_house.py", {"neither": set()}),
    ]
    # WHEN a line is changed THEN these are asked
    assert candidates(STAGES, [line], of) == asked
