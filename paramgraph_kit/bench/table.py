"""The results of a comparison as Markdown."""

from __future__ import annotations

from statistics import median
from typing import Any

from paramgraph_kit.bench.frozen import MODE, markdown_frozen

MIB = 1 << 20


def markdown(result: dict[str, Any]) -> str:
    """Tables of time and memory with the hardware above them; where we lose stands in the same rows."""
    source, rows = result["source"], result["rows"]
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["mode"] == MODE:
            continue
        by_name.setdefault(row["workload"], {})[row["mode"]] = row
    lines = [
        (
            f"{source['device']}, driver {source['driver']}, torch {source['torch']}, Python {source['python']}, "
            f"{source['date']}; `{source['command']}`."
        ),
        "",
        (
            "Times are medians of single steps in microseconds: CPU until everything is launched / total until the GPU "
            "is done. The modes take turns on the same two cores; the ratios are medians over the turns."
        ),
        "",
        "| workload | no graphs | graph trees | paramgraph | total over trees | bits |",
        "|---|---|---|---|---|---|",
    ]
    for name, modes in by_name.items():
        cells = [_times(modes.get(m)) for m in ("no graphs", "graph trees", "paramgraph")]
        lines.append(
            f"| {name} | {' | '.join(cells)} | {_ratio(modes)} | {_bits(modes.get('paramgraph', {}).get('bits'))} |"
        )
    lines += [
        "",
        (
            "Device memory in MiB (everything the process holds on the GPU): while stepping / peak reserved by the "
            "allocator / at rest, after `empty_cache()`. For trees and paramgraph: what they add to no graphs."
        ),
        "",
        "| workload | no graphs | trees add | paramgraph adds | outputs of the last call, trees / paramgraph |",
        "|---|---|---|---|---|",
    ]
    for name, modes in by_name.items():
        base = modes.get("no graphs")
        held = " / ".join(str(modes.get(m, {}).get("held_outputs", "?"))[:24] for m in ("graph trees", "paramgraph"))
        more = [added(modes.get(m), base) for m in ("graph trees", "paramgraph")]
        lines.append(f"| {name} | {memory(base)} | {' | '.join(more)} | {held} |")
    return "\n".join(lines + markdown_frozen([row for row in rows if row["mode"] == MODE])) + "\n"


def _times(row: dict[str, Any] | None) -> str:
    return f"{row['cpu_us']:.0f} / {row['total_us']:.0f}" if row and "cpu_us" in row else _missing(row)


def _ratio(modes: dict[str, dict[str, Any]]) -> str:
    """The median over the turns, each against the one beside it: what drifts is the same in both."""
    try:
        turns = zip(modes["paramgraph"]["total_us_turns"], modes["graph trees"]["total_us_turns"], strict=True)
        return f"{median(ours / theirs for ours, theirs in turns):.2f}"
    except KeyError:
        return "-"


def _bits(row: dict[str, Any] | None) -> str:
    if not row or "compared" not in row:
        return _missing(row)
    if row["different"] == 0:
        return f"{row['compared']} tensors equal"
    own = row["baseline_differs_from_itself"]
    return f"{row['different']} of {row['compared']} differ (the baseline differs from itself in {own})"


def memory(row: dict[str, Any] | None) -> str:
    """Device memory of a row in MiB: while stepping, the allocator's peak, at rest."""
    return " / ".join(f"{row[k] / MIB:.0f}" for k in _KEYS) if row and _KEYS[0] in row else _missing(row)


def added(row: dict[str, Any] | None, base: dict[str, Any] | None) -> str:
    """Device memory in MiB that a row has more than ``base``."""
    if not row or not base or _KEYS[0] not in row or _KEYS[0] not in base:
        return _missing(row)
    return " / ".join(f"{(row[k] - base[k]) / MIB:+.0f}" for k in _KEYS)


def _missing(row: dict[str, Any] | None) -> str:
    return f"failed: {row['error'][:60]}" if row and "error" in row else "-"


_KEYS = ("stepping_bytes", "peak_reserved_bytes", "rest_bytes")


def calls_markdown(rows: list[dict[str, Any]]) -> str:
    """The rows of ``bench --calls`` as one table for each workload, over graph trees where these were timed.

    >>> rows = [{"workload": "a model", "way": way, "cpu_us": 1, "total_us": us, "note": ""} for way, us in
    ...         (("graph trees", 4), ("paramgraph", 2))]
    >>> print(calls_markdown(rows))
    #### a model
    <BLANKLINE>
    | | CPU / total us | total over trees | MiB at rest / peak | |
    |---|---|---|---|---|
    | graph trees | 1 / 4 | 1.00 | | |
    | paramgraph | 1 / 2 | 0.50 | | |
    <BLANKLINE>
    """
    lines: list[str] = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        mine = [row for row in rows if row["workload"] == workload]
        trees = next((row["total_us"] for row in mine if row["way"] == "graph trees" and "total_us" in row), None)
        lines += [f"#### {workload}", "", "| | CPU / total us | total over trees | MiB at rest / peak | |"]
        lines.append("|---|---|---|---|---|")
        for row in mine:
            times = f"{row['cpu_us']} / {row['total_us']}" if "total_us" in row else ""
            ratio = f"{row['total_us'] / trees:.2f}" if trees and times else ""
            held = " / ".join(str(row[name]) for name in ("reserved_mib", "peak_mib") if name in row)
            cells = (row["way"], times, ratio, held, row["note"])
            lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
        lines.append("")
    return "\n".join(lines)
