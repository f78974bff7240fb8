"""The corpus's results as Markdown."""

from __future__ import annotations

from collections import Counter
from typing import Any

Row = dict[str, Any]
ORDER = ("wrong", "missed", "failed", "ungraphed", "refused", "equal", "skipped", "eager")
MEANING = {
    "wrong": "a tensor differs bit for bit although the baseline agrees with itself",
    "missed": "the report does not name what it should",
    "failed": "an error, a crash, or no end in time",
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
    return "\n".join(lines) + "\n"


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
