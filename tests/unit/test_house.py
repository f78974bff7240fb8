"""What the pages for those who work on the package say is so: files are there, the picture is today's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.architecture import PAGE, needs, page, without_shortcuts

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
README = ROOT / "README.md"
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:md|py|toml|js))`")
_STEP = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`:", re.MULTILINE)


@pytest.mark.parametrize("file", [PAGE, CONTRIBUTING, README], ids=lambda path: path.name)
def test_every_file_that_is_named_exists(file: Path) -> None:
    # GIVEN a page WHEN its file names are looked up THEN each is there; what a run makes is no file of the repository
    named = {name for name in _FILE.findall(file.read_text()) if not name.startswith(("out/", ".venv"))}
    assert len(named) > 5
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_each_step_of_a_walk_names_what_its_file_has() -> None:
    # GIVEN the walks WHEN each step's file is read THEN what the step names is in it
    steps = _STEP.findall(PAGE.read_text())
    numbered = re.findall(r"^\d+\. ", PAGE.read_text(), re.MULTILINE)
    assert len(steps) == len(numbered) > 25
    assert [(file, name) for file, name in steps if name not in (ROOT / file).read_text()] == []


def test_the_picture_is_drawn_from_today_s_imports() -> None:
    # GIVEN the page WHEN drawn again THEN nothing changes; otherwise: python -m scripts.architecture
    text = PAGE.read_text()
    assert page(text) == text
    assert "graph TD" in text


def test_the_picture_leaves_out_only_what_other_arrows_say() -> None:
    # GIVEN all imports between rooms WHEN shortcuts are left out THEN each room still reaches the same ones
    def below(room: str, graph: dict[str, set[str]]) -> set[str]:
        return graph[room].union(*(below(other, graph) for other in graph[room]))

    whole = needs()
    drawn = without_shortcuts(whole)
    assert {room: below(room, drawn) for room in whole} == {room: below(room, whole) for room in whole}
    assert "driver" in whole["capture"]
    assert sum(map(len, drawn.values())) < sum(map(len, whole.values()))


def test_each_of_ten_changes_touches_three_files_at_most() -> None:
    # GIVEN the table of changes WHEN its files are counted THEN no change needs more than three
    table = CONTRIBUTING.read_text().partition("| change | files |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    files = {change.strip(): _FILE.findall(named) for change, named in rows}
    assert len(files) >= 10
    assert all(1 <= len(named) <= 3 for named in files.values()), files


def test_each_test_that_takes_long_is_there() -> None:
    # GIVEN the list of tests that `make sweeps` runs WHEN looked for THEN each is a function of its file, in order
    lines = (ROOT / "tests" / "long.txt").read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, test = line.partition("::")
        name, text = test.partition("[")[0], (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text, line


def test_nothing_lies_in_the_house_s_hall_that_is_not_the_project_s() -> None:
    # GIVEN what is kept of this folder WHEN looked at its top THEN it is what a visitor expects: no note was left there
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=False, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a checkout")
    files = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"}
    folders = {".ci", "binder", "docs", "notebooks", "paramgraph_kit", "results", "scripts", "tests", "widgets"}
    assert {name.partition("/")[0] for name in listed.stdout.splitlines()} == {".gitignore"} | files | folders
