"""Results of a comparison as bars: SVG text, so that results kept in a repository can be looked at where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from paramgraph_kit.bench.frozen import MODE as FROZEN
from paramgraph_kit.explore.charts import COLOURS
from paramgraph_kit.explore.names import short

MIB = 1 << 20
WIDTH, LEFT, RIGHT = 860, 280, 140
BAR, GAP, TOP = 11, 9, 58
WAYS = {
    "graph trees": COLOURS[1],
    "paramgraph": COLOURS[0],
    'paramgraph, guards="dynamo"': COLOURS[2],
    'paramgraph, guards="inputs"': COLOURS[3],
    "parameterize(model)": COLOURS[4],
    "parameterize(step, state=...)": COLOURS[0],
    "frozen graph": COLOURS[5],
}
COLOUR_OF = {"graph trees": COLOURS[1], "paramgraph": COLOURS[0]}
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: whose, how long (0 to 1 of the axis), and what is written at its end."""

    series: str
    share: float
    label: str


def time_svg(result: Result) -> str:
    """Total time of a step over the time without graphs, for each workload.

    >>> times = [("no graphs", 8.0), ("graph trees", 4.0), ("paramgraph", 2.0)]
    >>> rows = [{"workload": "a model", "mode": mode, "total_us": us} for mode, us in times]
    >>> "0.25" in time_svg({"source": {"device": "a GPU", "date": "today"}, "rows": rows})
    True
    """
    groups = []
    for name, modes in _by_workload(result).items():
        if "total_us" not in modes.get("no graphs", {}):
            continue
        base = modes["no graphs"]["total_us"]
        found = [(mode, modes[mode]["total_us"]) for mode in COLOUR_OF if "total_us" in modes.get(mode, {})]
        bars = [Bar(mode, us / base / 1.1, f"{us / base:.2f}: {us:,.0f} us") for mode, us in found]
        groups.append((f"{name}, {base:,.0f} us", bars))
    title = "Total time of a step; without graphs, whose time stands at the left, it is 1"
    return _svg(title, result, groups, [(f"{tick:g}", tick / 1.1) for tick in (0, 0.25, 0.5, 0.75, 1)])


def memory_svg(result: Result) -> str:
    """Device memory that graphs add to a process at rest, after ``empty_cache()``, on a logarithmic axis."""
    groups = []
    top = 1 << 14
    for name, modes in _by_workload(result).items():
        if "rest_bytes" not in modes.get("no graphs", {}):
            continue
        base = modes["no graphs"]["rest_bytes"]
        found = [(mode, (modes[mode]["rest_bytes"] - base) / MIB) for mode in COLOUR_OF if "rest_bytes" in modes[mode]]
        bars = [Bar(mode, math.log2(max(1.0, mib)) / math.log2(top), f"{mib:+,.0f} MiB") for mode, mib in found]
        groups.append((name, bars))
    ticks = [(f"{1 << n:,}", n / math.log2(top)) for n in (0, 4, 8, 12)]
    return _svg("Device memory at rest, added to no graphs; MiB, each step of the axis 16 times", result, groups, ticks)


def calls_svg(result: Result) -> str:
    """Total time of a call, each way, over that of graph trees, for each workload of ``bench --calls``.

    >>> times = [("graph trees", 4.0), ("paramgraph", 2.0), ('paramgraph, guards="inputs"', 1.0)]
    >>> rows = [{"workload": "a model", "way": way, "total_us": us} for way, us in times]
    >>> "0.25: 1 us" in calls_svg({"source": {"device": "a GPU", "date": "today"}, "rows": rows})
    True
    """
    found: dict[str, dict[str, float]] = {}
    for row in result["rows"]:
        if "total_us" in row:
            found.setdefault(row["workload"], {})[row["way"]] = row["total_us"]
    groups = []
    for name, ways in found.items():
        if (trees := ways.get("graph trees")) is None:
            continue
        bars = [
            Bar(way, us / trees / 1.5, f"{us / trees:.2f}: {us:,.0f} us") for way, us in ways.items() if way in WAYS
        ]
        groups.append((f"{name}, {trees:,.0f} us", bars))
    ticks = [(f"{tick:g}", tick / 1.5) for tick in (0, 0.5, 1, 1.5)]
    return _svg(
        "Total time of a call; with graph trees, whose time is at the left, it is 1", result, groups, ticks, WAYS
    )


def _by_workload(result: Result) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        if row["mode"] != FROZEN:
            found.setdefault(row["workload"], {})[row["mode"]] = row
    return found


def _svg(
    title: str,
    result: Result,
    groups: Sequence[tuple[str, Sequence[Bar]]],
    ticks: Sequence[tuple[str, float]],
    colours: Mapping[str, str] = COLOUR_OF,
) -> str:
    wide = WIDTH - LEFT - RIGHT
    heights = [max(1, len(bars)) * (BAR + 2) + GAP for _, bars in groups]
    starts = list(accumulate((25 + 6 * len(series) for series in colours), initial=0))
    legend = 36 if starts[-1] < WIDTH / 2 else 54  # on a line of its own where it is long
    top = TOP + legend - 36
    height = top + sum(heights) + 26
    source = ", ".join(str(result["source"][k]) for k in ("device", "date") if k in result["source"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img"',
        f' aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="18" font-size="13" font-weight="600" fill="#222">{escape(title)}</text>',
        f'<text x="12" y="36" fill="#666">{escape(source)}</text>',
    ]
    for start, (series, colour) in zip(starts, colours.items(), strict=False):
        x = WIDTH - 40 - starts[-1] + start
        parts.append(f'<rect x="{x}" y="{legend - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="{legend}" fill="#222">{escape(series)}</text>')
    bottom = height - 20
    for label, share in ticks:
        tick_x = LEFT + wide * share
        parts.append(f'<path d="M{tick_x:.1f} {top - 8}V{bottom}" stroke="#ddd" fill="none"/>')
        parts.append(f'<text x="{tick_x:.1f}" y="{bottom + 13}" text-anchor="middle" fill="#777">{label}</text>')
    y = top
    for (name, bars), tall in zip(groups, heights, strict=True):
        middle = y + (tall - GAP) / 2 + 4
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end" fill="#222">{escape(short(name, 42))}</text>'
        )
        for n, bar in enumerate(bars):
            at = y + n * (BAR + 2)
            long = wide * min(1.0, max(0.0, bar.share))
            colour = colours[bar.series]
            parts.append(f'<rect x="{LEFT}" y="{at}" width="{long:.1f}" height="{BAR}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + long + 5:.1f}" y="{at + 9}" fill="{colour}">{escape(bar.label)}</text>')
        y += tall
    return "\n".join([*parts, "</svg>"]) + "\n"
