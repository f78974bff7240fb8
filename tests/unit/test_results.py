"""The tables of measurements are those of the rows that were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
BENCH = "h200-2026-11-21-bench.json"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
SECTIONS = [(BENCH, PAGE.partition("### Time\n")[2].partition("\n### ")[0])]
SECTIONS += [
    (rows[1], section)
    for section in re.split(r"\n##+ ", PAGE)
    if (rows := re.search(r"\[rows\]\((\S+\.json)\)", section))
]
_PAIR = re.compile(r"\| (?:\*\*)?(\d+) / (\d+)(?:\*\*)? (?=\|)")
MODES = ("no graphs", "graph trees", "paramgraph")


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]
    return rows


def by_workload() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows_of(BENCH):
        found.setdefault(row["workload"], {})[row["mode"]] = row
    return found


@pytest.mark.parametrize(("name", "section"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_each_pair_of_times_was_measured(name: str, section: str) -> None:
    # GIVEN a section's tables, and the rows that it links to
    measured = {(round(r["cpu_us"]), round(r["total_us"])) for r in rows_of(name) if "total_us" in r}
    told = [(int(cpu), int(total)) for cpu, total in _PAIR.findall(section)]
    # WHEN compared THEN each pair of CPU and total is that of a row
    assert len(told) > 2
    assert [pair for pair in told if pair not in measured] == []


def test_the_first_page_shows_what_was_measured() -> None:
    # GIVEN the table of the first page WHEN compared with the rows THEN each line is one workload's, in order
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    table = page.partition("| workload | no graphs | graph trees | paramgraph |")[2].partition("\n\n")[0]
    told = [re.findall(r"\| \**(\d+)\** (?=\|)", line) for line in table.splitlines()[2:]]
    measured = [[str(round(modes[mode]["total_us"])) for mode in MODES] for modes in by_workload().values()]
    assert told == measured[: len(told)]
    assert len(told) == 8


def test_what_graphs_hold_at_rest_was_measured() -> None:
    # GIVEN the table of memory WHEN compared with the rows THEN the last figure of each cell is the one at rest
    table = PAGE.partition("| workload | no graphs | trees add | paramgraph adds |")[2].partition("\n\n")[0]
    lines = {cells[1].strip(): cells[2:5] for cells in (line.split("|") for line in table.splitlines()[2:])}
    for workload, modes in by_workload().items():
        plain, *graphed = (modes[mode]["rest_bytes"] / 2**20 for mode in MODES)
        rest = [int(cell.split("/")[2]) for cell in lines[workload]]
        assert rest == pytest.approx([plain, *(each - plain for each in graphed)], abs=1.01), workload


@pytest.mark.parametrize(("name", "section"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_each_ratio_of_a_whole_step_is_the_median_over_the_turns(name: str, section: str) -> None:
    # GIVEN a section's tables of whole steps, and the rows that it links to
    measured = {(round(row["cpu_us"]), round(row["total_us"])): row for row in rows_of(name) if "total_us_turns" in row}
    for table in re.findall(r"^\|.*\| over frozen \|.*\n(?:\|.*\n)+", section, re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for cells in lines:
            pairs = {n: pair for n, cell in enumerate(cells) if (pair := re.fullmatch(r"(\d+) / (\d+)", cell))}
            rows = {head[n]: measured.get((int(pair[1]), int(pair[2]))) for n, pair in pairs.items()}
            ours = rows.get("`parameterize(step, state=...)`")
            # WHEN compared THEN each ratio is that of ours and of the other way's turns beside it
            for told, way in (("over frozen", "frozen graph of the step"), ("over trees", "graph trees")):
                other = rows.get(way)
                if ours and other and cells[head.index(told)]:
                    turns = zip(ours["total_us_turns"], other["total_us_turns"], strict=True)
                    assert cells[head.index(told)] == f"{median(a / b for a, b in turns):.2f}", (cells[0], told)
            plain, memory = rows.get("no graphs"), "reserved at rest / peak over no graphs"
            if ours and plain and memory in head:
                rest, peak = ours["rest_mib"] - plain["rest_mib"], ours["peak_mib"] / plain["peak_mib"]
                assert cells[head.index(memory)] == f"{rest:+} MiB / {peak:.2f}", cells[0]


def test_the_first_page_shows_the_whole_steps_that_were_measured() -> None:
    # GIVEN the table of whole steps on the first page, and what is added at rest
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    table = page.partition("| whole step, total us |")[2].partition("\n\n")[0]
    steps: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows_of("h200-2026-11-23-evening.json"):
        workload, is_step, rest = row["workload"].partition(", whole step ")
        if is_step and "compiled" in rest:
            steps.setdefault(workload, {})[row["way"]] = row
    # WHEN compared with the rows THEN each line is that of its workload
    told = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    for workload, *cells in told:
        plain, ours = steps[workload]["no graphs"], steps[workload]["parameterize(step, state=...)"]
        more = ours["rest_mib"] - plain["rest_mib"]
        assert cells == [
            f"{plain['total_us']:.0f}",
            f"{steps[workload]['graph trees']['total_us']:.0f}",
            f"**{ours['total_us']:.0f}** ({ours['cpu_us']:.0f}, {more:+} MiB)",
            f"{steps[workload]['frozen graph']['total_us']:.0f}",
        ]
    # AND what others add is told in the order of the table
    added = {
        way: [steps[workload][way]["rest_mib"] - steps[workload]["no graphs"]["rest_mib"] for workload, *_ in told]
        for way in ("graph trees", "frozen graph")
    }
    (trees, frozen) = ("{}, {}, {} and {}".format(*each) for each in added.values())
    assert f"Trees add {trees} MiB at rest, the frozen graph {frozen}." in PAGE
