"""Lessons for Colab: the table is that of the lessons, and a copy installs what is missing before anything else."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from scripts import colab


def test_the_table_is_that_of_the_lessons(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the page WHEN checked THEN every lesson has its row, and nothing else has
    assert colab.main(["check"]) == 0, capsys.readouterr().out
    page = colab.PAGE.read_text(encoding="utf-8")
    assert page.count("| [") == len(colab.lessons()) >= 13
    # AND a table of other lessons is noticed
    assert colab.with_table(page.replace("| [03_", "| [33_")) == page


def test_with_an_address_each_lesson_has_its_badge() -> None:
    rows = colab.table("somebody/paramgraph_kit").splitlines()[2:]
    start = "https://colab.research.google.com/github/somebody/paramgraph_kit/blob/colab/notebooks/"
    assert all(row.count(start) == 1 for row in rows)
    assert all((colab.ROOT / "notebooks" / row.rpartition(start)[2].partition(")")[0]).exists() for row in rows)


def test_with_an_address_the_page_says_nothing_of_doing_without() -> None:
    # GIVEN the page of today WHEN the address is set THEN nothing says that there is none, and every row has a badge
    page = colab.with_table(colab.PAGE.read_text(encoding="utf-8"), "somebody/paramgraph_kit")
    assert "no public address" not in page
    assert page.count(colab.BADGE) == len(colab.lessons())
    # AND without one it says how to do it by hand
    assert "no public address" in colab.with_table(page, "")


def test_a_copy_installs_first_and_is_the_lesson_otherwise(tmp_path: Path) -> None:
    # GIVEN a source WHEN the copies are written
    assert colab.main(["copies", str(tmp_path), "--source", "paramgraph_kit-0.1-py3-none-any.whl"]) == 0
    for path in colab.lessons():
        cells = json.loads((tmp_path / path.relative_to(colab.ROOT)).read_text())["cells"]
        # THEN the first cell is the only new one, and installs only where the package is missing
        assert cells[1:] == json.loads(path.read_text())["cells"]
        first = "".join(cells[0]["source"])
        assert 'SOURCE = "paramgraph_kit-0.1-py3-none-any.whl"' in first
        ran: dict[str, object] = {}
        exec(compile(ast.parse(first), "first", "exec"), ran)  # here it is there, and this is not Colab
        assert "output" not in ran


def test_copies_need_a_source_as_long_as_there_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        colab.main(["copies", "somewhere"])
    assert "--source as long as the project has no public address" in capsys.readouterr().err
