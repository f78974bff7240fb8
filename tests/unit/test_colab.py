"""Lessons for Colab: the table is that of the lessons, and a copy installs what is missing before anything else."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from scripts import colab


def test_the_table_is_that_of_the_lessons(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the page WHEN checked THEN every lesson has its row, and nothing else has
    assert colab.main(["check"]) == 0, capsys.readouterr().out
    page = colab.PAGE.read_text(encoding="utf-8")
    assert page.count("| [") == len(colab.lessons()) >= 13
    # AND a table of other lessons is noticed
    assert colab.with_table(page.replace("| [03_", "| [33_"), colab.of_page(page)) == page


def test_with_an_address_each_lesson_has_its_badges() -> None:
    rows = colab.table("somebody/paramgraph_kit").splitlines()[2:]
    for start in (
        "https://colab.research.google.com/github/somebody/paramgraph_kit/blob/colab/",
        "https://mybinder.org/v2/gh/somebody/paramgraph_kit/HEAD?urlpath=lab/tree/",
    ):
        assert all(row.count(start) == 1 for row in rows)
        assert all((colab.ROOT / row.partition(start)[2].partition(")")[0]).is_file() for row in rows)


def test_with_an_address_the_page_says_nothing_of_doing_without() -> None:
    # GIVEN the page of today WHEN it gets an address THEN nothing says that there is none, and every row has its badges
    page = colab.with_table(colab.PAGE.read_text(encoding="utf-8"), "somebody/paramgraph_kit")
    assert "no public address" not in page
    assert page.count(colab.BADGE) == page.count(colab.BINDER) == len(colab.lessons())
    # AND the check knows whose they are, in whichever clone it runs
    assert colab.of_page(page) == "somebody/paramgraph_kit"
    assert colab.with_table(page, colab.of_page(page)) == page
    # AND without one it says how to do it by hand
    assert "no public address" in colab.with_table(page, "")


@pytest.mark.parametrize(
    ("address", "repository"),
    [
        ("https://github.com/ada/kit.git", "ada/kit"),
        ("git@github.com:ada/kit", "ada/kit"),
        ("ssh://git@github.com/ada/my.kit.git", "ada/my.kit"),
        ("https://gitlab.com/ada/kit.git", ""),
        ("/srv/git/kit", ""),
        ("", ""),
    ],
)
def test_write_takes_the_address_from_which_the_clone_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, repository: str
) -> None:
    # GIVEN a clone from somewhere, with a page without badges
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if address:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", address], check=True)
    assert colab.origin(tmp_path) == repository
    page = tmp_path / "colab.md"
    page.write_text(colab.with_table(colab.PAGE.read_text(encoding="utf-8"), ""), encoding="utf-8")
    monkeypatch.setattr(colab, "PAGE", page)
    # WHEN its table is written THEN the badges are that address's, and the check takes them
    assert colab.main(["write", "--repository", colab.origin(tmp_path)]) == 0
    assert colab.of_page(page.read_text(encoding="utf-8")) == repository
    assert colab.main(["check", "--repository", ""]) == 0


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
        colab.main(["copies", "somewhere", "--repository", ""])
    assert "--source where this clone came from no public address" in capsys.readouterr().err
