"""The results of training on several GPUs as Markdown."""

from __future__ import annotations

from typing import Any

from paramgraph_kit.bench.table import memory

Row = dict[str, Any]


def markdown(result: Row) -> str:
    """Bits, time and memory, one row for each strategy and mode."""
    source, rows = result["source"], result["rows"]
    where = ", ".join(f"{name} {source[name]}" for name in ("driver", "torch", "date") if name in source)
    lines = [
        f"{result['ranks']} x {source['device']}, {where}; `{source['command']}`.",
        "",
        (
            "Training by block: 8 Llama-like layers, d=1024, 2 x 256 tokens a rank, AdamW. Times are medians of single "
            "steps of the first rank in microseconds: CPU / total. Memory of its GPU in MiB: stepping / peak reserved "
            "/ at rest, after `empty_cache()`."
        ),
        "",
        "| | mode | CPU / total | memory | losses and parameters that differ in any bit from ungraphed | launches |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['strategy']} | {row['mode']} | failed: {row['error'][:120]} | | | |")
            continue
        times = f"{row['cpu_us']:.0f} / {row['total_us']:.0f}"
        lines.append(
            f"| {row['strategy']} | {row['mode']} | {times} | {memory(row)} | {_bits(row)} | {_launches(row)} |"
        )
    return "\n".join(lines) + "\n"


def _bits(row: Row) -> str:
    if "different" not in row:
        return "-"
    own = row["baseline_differs_from_itself"]
    text = f"{row['different']} of {row['compared']}"
    return f"{text} (ungraphed runs among themselves: {own})" if own else text


def _launches(row: Row) -> str:
    if "launches" not in row:
        return "-"
    return f"{row['launches']} of {row['executables']} executables, {row['patched_launches']} patched"
