"""The results of a comparison as Markdown."""

from __future__ import annotations

from statistics import median
from typing import Any

from paramgraph_kit.bench.frozen import MODE, markdown_frozen
from paramgraph_kit.bench.ways import FROZEN, NO_GRAPHS, TREES

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
    """The rows of ``bench --calls`` and ``--whole-steps`` as one table for each workload.

    Ratios are medians over the turns. Memory is the allocator's in MiB, at rest and at the peak of a step; below the
    code without graphs, what is added at rest, in brackets for the whole process where the system tells it, and the
    peak over that without graphs.

    >>> rows = [{"workload": "a model", "way": way, "cpu_us": 1, "total_us": us, "total_us_turns": [us],
    ...          "in_a_row_us": us, "rest_mib": us, "peak_mib": 2 * us, "note": ""}
    ...         for way, us in (("no graphs", 8), ("graph trees", 4), ("paramgraph", 10))]
    >>> print(calls_markdown(rows))
    #### a model
    <BLANKLINE>
    | | CPU / total us | in a row | over trees | over frozen | at rest | peak | |
    |---|---|---|---|---|---|---|---|
    | no graphs | 1 / 8 | 8 | 2.00 | | 8 | 16 | |
    | graph trees | 1 / 4 | 4 | 1.00 | | -4 | 0.50 | |
    | paramgraph | 1 / 10 | 10 | 2.50 | | +2 | 1.25 | |
    <BLANKLINE>
    """
    lines: list[str] = []
    for workload, ways in _by_way(rows).items():
        lines += [
            f"#### {workload}",
            "",
            "| | CPU / total us | in a row | over trees | over frozen | at rest | peak | |",
        ]
        lines.append("|---" * 8 + "|")
        for way, row in ways.items():
            times = (
                [f"{row['cpu_us']:.0f} / {row['total_us']:.0f}", f"{row['in_a_row_us']:.0f}"]
                if _timed(row)
                else ["", ""]
            )
            ratios = [_text(over(row, ways.get(other)), ".2f") for other in (TREES, FROZEN)]
            cells = [way, *times, *ratios, *_memory(row, ways.get(NO_GRAPHS)), row["note"]]
            lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
        lines.append("")
    return "\n".join(lines)


def worst(rows: list[dict[str, Any]], count: int = 8) -> list[str]:
    """What of ours is slower than graph trees or than no graphs, and what holds most more than no graphs.

    >>> rows = [{"workload": "a model", "way": way, "total_us": us, "total_us_turns": [us], "rest_mib": us, "note": ""}
    ...         for way, us in (("no graphs", 80), ("graph trees", 4), ("paramgraph", 10))]
    >>> worst(rows)
    ['2.50 of graph trees: a model, paramgraph', '-70 MiB at rest over no graphs: a model, paramgraph']
    """
    slow: list[tuple[float, str]] = []
    memory: list[tuple[float, str]] = []
    for workload, ways in _by_way(rows).items():
        for way, row in ways.items():
            if way in (NO_GRAPHS, TREES, FROZEN):
                continue
            for other in (TREES, NO_GRAPHS):
                if (ratio := over(row, ways.get(other))) is not None and (other == TREES or ratio > 1):
                    slow.append((ratio, f"{ratio:.2f} of {other}: {workload}, {way}"))
            plain = ways.get(NO_GRAPHS, {})
            if "rest_mib" in row and "rest_mib" in plain:
                more = row["rest_mib"] - plain["rest_mib"]
                memory.append((more, f"{more:+d} MiB at rest over no graphs: {workload}, {way}"))
    return [text for found in (slow, memory) for _, text in sorted(found, reverse=True)[:count]]


def over(row: dict[str, Any], other: dict[str, Any] | None) -> float | None:
    """The total time over another way's, turn by turn: what drifts is the same in both."""
    if not other or "total_us_turns" not in row or "total_us_turns" not in other:
        return None
    pairs = list(zip(row["total_us_turns"], other["total_us_turns"], strict=False))
    return median(mine / theirs for mine, theirs in pairs) if pairs else None


def _by_way(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["workload"], {})[row["way"]] = row
    return found


def _timed(row: dict[str, Any]) -> bool:
    return "total_us" in row


def _memory(row: dict[str, Any], plain: dict[str, Any] | None) -> list[str]:
    if "rest_mib" not in row:
        return ["", ""]
    if plain is None or plain is row or "rest_mib" not in plain:
        return [str(row["rest_mib"]), str(row["peak_mib"])]
    rest = f"{row['rest_mib'] - plain['rest_mib']:+d}"
    if "rest_held_mib" in row and "rest_held_mib" in plain:
        rest += f" ({row['rest_held_mib'] - plain['rest_held_mib']:+d})"
    return [rest, f"{row['peak_mib'] / max(plain['peak_mib'], 1):.2f}"]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
