"""The list as a table: a row for each workload, also for those that nothing here has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.corpus.published.listed import LISTED, Listed
from tests.corpus.published.measure import ALL, CHOSEN, OURS, PLAIN, TREES

HEADS = (
    "workload",
    "no graphs",
    "graph trees",
    "paramgraph",
    "over no graphs",
    "over trees",
    "select=measure",
    "graphs kept",
    "kernels in graphs",
    "MB copied a step: trees / ours",
    "tensors that differ",
    "",
)
Row = dict[str, Any]


def markdown(rows: Sequence[Row]) -> str:
    """Microseconds of a step until the device is done, medians, and what they come to."""
    found = {(row["short"], row["way"]): row for row in rows if "short" in row}
    source = next((row["source"] for row in rows if "source" in row), None)
    lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    lines += [_line(each, found.get((each.short, OURS)), found.get((each.short, TREES))) for each in LISTED]
    if source is not None:
        head = f"{source['device']}, driver {source['driver']}, torch {source['torch']}; `{source['command']}`."
        lines = [head, "", *lines]
    return "\n".join([*lines, "", *_summary(found)]) + "\n"


def _line(listed: Listed, ours: Row | None, trees: Row | None) -> str:
    batch = f"{'training' if listed.training else 'inference'}, batch {listed.batch}"
    name = f"{listed.short}: {listed.model}, {batch}"
    if ours is None and trees is None:
        said = listed.absent or ("compiles for minutes: not asked for" if listed.note == "slow" else "not in this run")
        return f"| {name} |" + " |" * (len(HEADS) - 2) + f" {said} |"
    ours, trees = ours or {}, trees or {}
    us = ours.get("us", {}) | trees.get("us", {})
    cells = [f"{us[way]:,.0f}" if way in us else "-" for way in (PLAIN, TREES, ALL)]
    cells += [f"{us[ALL] / us[way]:.2f}" if way in us and ALL in us else "-" for way in (PLAIN, TREES)]
    cells.append(f"{us[CHOSEN]:,.0f}" if CHOSEN in us else "-")
    partitions = [p for p in ours.get("partitions", ()) if p["kept"] is not None]
    cells.append(f"{sum(p['kept'] for p in partitions)} of {len(partitions)}" if partitions else "-")
    inside, total = ours.get("kernels", ("-", "-"))
    cells.append(f"{inside} of {'?' if total is None else total}" if "kernels" in ours else "-")
    cells.append(" / ".join(_megabytes(row.get("copied_bytes")) for row in (trees, ours)))
    bits = ours.get("bits")
    unstable = f", {bits['unstable']} without graphs" if bits and bits["unstable"] else ""
    cells.append(f"{bits['different']} of {bits['compared']}{unstable}" if bits else "-")
    notes = [listed.note] if listed.note else []
    made, whole = ours.get("layers") or trees.get("layers") or (0, 0)
    notes += [f"{made} of {whole} layers"] if made != whole else []
    notes += [p["verdict"] for p in partitions if p.get("verdict", "").startswith("WRONG")]
    notes += [f"{row['way']}: {row['error'][:80]}" for row in (ours, trees) if "error" in row]
    return "| " + " | ".join([name, *cells, "; ".join(notes).replace("|", "\\|")]) + " |"


def _megabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:,.2f}" if count else "0"


def _summary(found: dict[tuple[str, str], Row]) -> list[str]:
    ours = {short: row for (short, way), row in found.items() if way == OURS and "us" in row}
    trees = {short: row["us"][TREES] for (short, way), row in found.items() if way == TREES and "us" in row}
    plain = [row["us"][ALL] / row["us"][PLAIN] for row in ours.values()]
    both = [row["us"][ALL] / trees[short] for short, row in ours.items() if short in trees]
    theirs = [trees[short] / row["us"][PLAIN] for short, row in ours.items() if short in trees]
    every = [p for row in ours.values() for p in row["partitions"] if p["kept"] is not None]
    verdicts = [p.get("verdict", "not timed apart") for p in every]
    wrong = sum(v.startswith("WRONG") for v in verdicts)
    lost = [short for short, row in ours.items() if short in trees and row["us"][ALL] > 1.03 * trees[short]]
    kept = sum(p["kept"] for p in every)
    return [
        f"{len(ours)} of {len(LISTED)} workloads measured, {len(both)} of them with graph trees, too.",
        f"Geometric means: {_mean(both)} of graph trees, {_mean(plain)} of no graphs (trees: {_mean(theirs)}).",
        f"More than 3 % slower than trees: {', '.join(lost) or 'none'}.",
        f'`select="measure"` kept {kept} of {len(every)} graphs: {verdicts.count("right")} right,',
        f"{verdicts.count('even')} even, {wrong} wrong, {verdicts.count('not timed apart')} not timed apart.",
    ]


def _mean(ratios: Sequence[float]) -> str:
    return f"{math.exp(math.fsum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"
