"""What docs/launcher.md lists is what there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from paramgraph_kit.backend.report import HEADS, LEGEND, make_report
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.metrics.table import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "launcher.md").read_text()
AREAS = {
    *("Launcher", "Doctor", "Explorer", "Simulator", "Recordings and measurements", "Notebooks"),
    *("Errors", "In the systems of others", "Development"),
}
LAYERS = ("backend", "capture", "driver", "launch", "partition")


def test_every_reason_that_a_report_can_give_is_explained() -> None:
    # GIVEN the codes in the source of the layers that refuse
    sources = [path.read_text() for layer in LAYERS for path in (ROOT / "paramgraph_kit" / layer).rglob("*.py")]
    given = {
        code for text in sources for code in re.findall(r'(?:Reason\(\s*|return )"([a-z]+(?:-[a-z]+)+)"\s*,', text)
    }
    assert len(given) > 20
    # WHEN looked up in the table THEN each has its row, and no row is of a code that there is not
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and not line.startswith("| `options")]
    explained = {code for row in rows for code in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", row.split("|")[1])}
    assert explained == given


def test_every_column_of_a_report_is_explained_as_it_explains_itself() -> None:
    # GIVEN what a report says of its columns WHEN looked up THEN the page says the same, and no heading is without
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE.partition("## The words")[2], re.MULTILINE))
    assert {head: rows[head] for head in LEGEND} == LEGEND
    report = make_report()
    assert all(line.split("  ")[0] in HEADS for line in report.legend().splitlines())


def test_every_option_is_documented_with_its_default() -> None:
    # GIVEN the options WHEN looked up THEN each has its row
    names = [field.name for field in fields(Options)]
    assert re.findall(rf"^\| `({'|'.join(names)})` ", PAGE, re.MULTILINE) == names
    assert f"({Options().stages})" in PAGE


def test_the_changelog_is_told_by_area() -> None:
    # GIVEN what is not released yet
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    # WHEN split THEN each area is known and stands there once, and all else is entries
    areas = re.findall(r"^### (.*)$", unreleased, re.MULTILINE)
    assert set(areas) <= AREAS
    assert len(areas) == len(set(areas)) > 3
    assert {line[:2] for line in unreleased.splitlines() if line} <= {"- ", "  ", "##"}


def test_every_metric_is_documented_as_it_is() -> None:
    # GIVEN the table WHEN compared with the metrics THEN each has its row, in the same words
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `paramgraph_") and "_info" not in line]
    assert rows == [
        f"| `{m.prometheus}` | `{m.instrument}`, {m.unit} | {', '.join(m.labels)} | {m.text} |" for m in METRICS
    ]
