"""The corpus's results as Markdown."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.corpus.timing import MODES, SELECTED, ratio, summary

Row = dict[str, Any]
ORDER = ("wrong", "missed", "failed", "unable", "ungraphed", "refused", "equal", "skipped", "eager")
MEANING = {
    "wrong": "a tensor differs bit for bit although the baseline agrees with itself",
    "missed": "the report does not name what it should",
    "failed": "an error, a crash, or no end in time",
    "unable": "this torch cannot compile it without graphs either",
    "ungraphed": "right, but no launch came from a graph",
    "refused": "right, and the report says what no graph may take",
    "equal": "every tensor equal, launched from graphs",
    "skipped": "something it needs is not here",
    "eager": "only run, without compiling",
}


def markdown(result: Row) -> str:
    """How many of each status, what is bad, and one line for each workload."""
    source, rows = result["source"], result["rows"]
    counts = Counter(row["status"] for row in rows)
    lines = [
        (
            f"{source['device']}, driver {source['driver']}, torch {source['torch']}, Python {source['python']}, "
            f"{source['date']}; `{source['command']}`."
        ),
        "",
        "| status | workloads | meaning |",
        "|---|---|---|",
        *(f"| {status} | {counts[status]} | {MEANING[status]} |" for status in ORDER if counts[status]),
        "",
        "| workload | status | tensors | kernels in graphs | peak MiB | s | not in graphs, because |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: ORDER.index(row["status"])):
        lines.append(
            f"| {row['workload']} | {row['status']} | {_tensors(row)} | {_kernels(row)} | {_peak(row)} | "
            f"{row.get('process_s', '')} | {_why(row)} |"
        )
    return "\n".join([*lines, *_times(result.get("times", []))]) + "\n"


def _times(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    found = summary(rows)
    worst = found["worst_over_better"]
    lines = [
        "",
        (
            f"Total time of a step in microseconds, medians, all modes in turns in one process; "
            f"{found['workloads']} workloads. Geometric mean of paramgraph over graph trees: "
            f"{found['geometric_mean_over_trees']} ({found['compared_with_trees']} workloads that trees can run). "
            f"Worst over the better of the others: {worst and worst['ratio']} ({worst and worst['workload']}). "
            f"With select=measure, {found['graphs_not_kept']} of {found['graphs_measured']} graphs were slower than "
            "the same code without, and were not kept."
        ),
        "",
        f"| workload | {' | '.join(MODES)} | over trees | over the better | select=measure | graphs kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -(ratio(row, *MODES[:2]) or 0)):
        cells = [_time(row, mode) for mode in MODES]
        ratios = [ratio(row, "graph trees"), ratio(row, "no graphs", "graph trees")]
        cells += ["-" if r is None else f"{r:.2f}" for r in ratios]
        chosen = row.get("selection", ())
        cells += [_time(row, SELECTED), f"{sum(g['kept'] for g in chosen)} of {len(chosen)}" if chosen else "-"]
        lines.append(f"| {row['workload']} | {' | '.join(cells)} |")
    return lines


def _time(row: Row, mode: str) -> str:
    if mode in row.get("us", {}):
        return f"{row['us'][mode]:.0f}"
    error = row.get("errors", {}).get(mode, row.get("error", "-"))
    return str(error)[:60].replace("|", "\\|")


def _tensors(row: Row) -> str:
    if "compared" not in row:
        return "-"
    text = f"{row['compared']}"
    if row.get("different"):
        text += f", {row['different']} differ"
    if row.get("baseline_differs_from_itself"):
        text += f", {row['baseline_differs_from_itself']} unstable without graphs"
    return text


def _kernels(row: Row) -> str:
    if "kernels_in_graphs" not in row:
        return "-"
    total = "?" if row["kernels"] is None else row["kernels"]
    return f"{row['kernels_in_graphs']} / {total}"


def _peak(row: Row) -> str:
    return f"{row['peak_bytes'] / (1 << 20):.0f}" if "peak_bytes" in row else "-"


def _why(row: Row) -> str:
    reasons = [row["error"]] if "error" in row else []
    reasons += row.get("reasons", [])
    short = [reason.replace("|", "\\|").replace("\n", " ")[:160] for reason in reasons]
    return "<br>".join(short[:4]) + (f"<br>and {len(short) - 4} more" if len(short) > 4 else "")
