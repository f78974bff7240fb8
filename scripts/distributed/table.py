"""The results of training on several GPUs as Markdown."""

from __future__ import annotations

from typing import Any

from paramgraph_kit.bench.table import added, memory

Row = dict[str, Any]


def markdown(result: Row) -> str:
    """Bits, time and memory, one row for each strategy and mode."""
    source, rows = result["source"], result["rows"]
    where = ", ".join(f"{name} {source[name]}" for name in ("driver", "torch", "date") if name in source)
    lines = [
        f"{result['ranks']} x {source['device']}, {where}; `{source['command']}`.",
        "",
        (
            "Training by block: Llama-like layers, AdamW; compared with deterministic kernels. Times are medians of "
            "steps of the first rank in microseconds: CPU / total. Memory of its GPU in MiB: stepping / peak reserved /"
            " at rest, after `empty_cache()`, and what graphs add to each."
        ),
        "",
        *dict.fromkeys(f"* {row['strategy']}: {row['what']}" for row in rows if "what" in row),
        "",
        *[_times(row) for row in rows if "seconds" in row],
        "",
        "| | mode | CPU / total | memory | added | losses and parameters that differ from ungraphed | launches |",
        "|---|---|---|---|---|---|---|",
    ]
    plain = {row["strategy"]: row for row in rows if row["mode"] == "no graphs"}
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['strategy']} | {row['mode']} | failed: {row['error'][:120]} | | | | |")
            continue
        times = f"{row['cpu_us']:.0f} / {row['total_us']:.0f}"
        lines.append(
            f"| {row['strategy']} | {row['mode']} | {times} | {memory(row)} | "
            f"{'-' if row['mode'] == 'no graphs' else added(row, plain.get(row['strategy']))} | {_bits(row)} | "
            f"{_launches(row)} |"
        )
    return "\n".join(lines) + "\n"


def _bits(row: Row) -> str:
    if "different" not in row:
        return str(row.get("bits", "-"))
    own = row["baseline_differs_from_itself"]
    text = f"{row['different']} of {row['compared'] - own}"
    return f"{text} ({own} more differ between ungraphed runs, too)" if own else text


def _times(row: Row) -> str:
    parts = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in row["seconds"].items())
    return f"* {row['strategy']}, {row['mode']}: {parts}"


def _launches(row: Row) -> str:
    if "launches" not in row:
        return "-"
    return f"{row['launches']} of {row['executables']} executables, {row['patched_launches']} patched"
