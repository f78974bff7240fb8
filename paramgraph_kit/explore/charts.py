"""Small static charts as SVG text: no script, no network, colours from the page's style or their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from paramgraph_kit.explore.names import bytes_text, short
from paramgraph_kit.explore.pools import PoolSeries
from paramgraph_kit.trace.wording import one_line

# Colour, dash and the name at the line's end: any one of them is enough to tell lines apart.
GREY = "#7d838b"  # read on white and on black alike
COLOURS = ("#2563b8", "#b4511a", "#3d7a21", "#7e3fb8", "#0f766e", "#94660b")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "12 4")
MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Line:
    """One stepped line; ``filled`` draws it as the area of live bytes inside an envelope."""

    name: str
    values: Sequence[int]
    filled: bool = False
    colour: int = 0


def thin(values: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """At most ``most`` values, each the largest of its share, so that no peak is lost.

    >>> thin([1, 9, 2, 3], 2)
    [9, 3]
    """
    count = len(values)
    columns = min(most, count)
    return [max(values[i * count // columns : (i + 1) * count // columns]) for i in range(columns)]


def byte_ticks(top: int) -> list[int]:
    """Two to five round byte counts from 0 to at least ``top``.

    >>> byte_ticks(3 << 20) == [0, 1 << 20, 2 << 20, 3 << 20]
    True
    """
    step = 1
    while step * 4 < top:
        step *= 2
    return list(range(0, step * max(2, -(-top // step)) + 1, step))


def line_chart(lines: Sequence[Line], title: str, says: str, *, width: int = 720, height: int = 240) -> str:
    """Stepped lines over one byte axis.

    Args:
        lines: what to draw, in drawing order.
        title: shown above the chart.
        says: the text alternative.
        width: pixels; the chart scales with its container.
        height: pixels.
    """
    left, right, top, bottom = 64, 172, 30, 26
    ticks = byte_ticks(max((max(line.values, default=0) for line in lines), default=0))
    wide, high = width - left - right, height - top - bottom

    def y_of(value: int) -> float:
        return top + high * (1 - value / ticks[-1])

    head = f'class="head" x="0" y="14" font-size="12" font-weight="600" fill="{GREY}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" role="img"',
        f' aria-label="{escape(one_line(says))}" font-family="system-ui, sans-serif" font-size="11">',
        f"<text {head}>{escape(one_line(title))}</text>",
    ]
    for tick in ticks:
        y = y_of(tick)
        grid = f'stroke="{GREY}" stroke-opacity="0.3" fill="none"'
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{wide}" {grid}/>')
        word = f'class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{GREY}"'
        parts.append(f"<text {word}>{bytes_text(tick)}</text>")
    ends: list[tuple[float, str, str]] = []
    for line in lines:
        values = thin(line.values)
        if not values:
            continue
        colour, dash = COLOURS[line.colour % len(COLOURS)], DASHES[line.colour % len(DASHES)]
        step = wide / len(values)
        path = f"M{left} {y_of(values[0]):.1f}" + "".join(
            f"H{left + step * n:.1f}V{y_of(v):.1f}" for n, v in enumerate(values) if n and v != values[n - 1]
        )
        path += f"H{left + wide}"
        if line.filled:
            shape = f"{path}V{y_of(0):.1f}H{left}Z"
            parts.append(f'<path class="s{line.colour % 6} area" d="{shape}" fill="{colour}" fill-opacity="0.22"/>')
        else:
            style = 'fill="none" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
            parts.append(f'<path class="s{line.colour % 6} line" d="{path}" stroke="{colour}" {style}/>')
        ends.append((y_of(values[-1]), f"{short(line.name, 16)}  {bytes_text(values[-1])}", colour))
    floor = float(top)
    for y, label, colour in sorted(ends):
        floor = max(y, floor)
        parts.append(
            f'<text class="end" x="{left + wide + 8}" y="{floor + 4:.1f}" fill="{colour}">{escape(label)}</text>'
        )
        floor += 14
    return "\n".join([*parts, "</svg>"])


def pool_chart(series: Sequence[PoolSeries], says: str) -> str:
    """Pools over time: the line is what a pool reserved, the area inside it what was live."""
    lines = []
    for n, pool in enumerate(series):
        lines.append(Line(f"{pool.name} live", pool.held(pool.live), filled=True, colour=n))
        lines.append(Line(pool.name, pool.held(pool.reserved), colour=n))
    # Some room for every name at the right edge.
    return line_chart(
        lines, "device memory by pool, over allocator events", says, height=max(240, 60 + 30 * len(series))
    )


def share_bar(part: int, whole: int, says: str, width: int = 220) -> str:
    """A thin bar that shows ``part`` of ``whole``."""
    filled = width * part / whole if whole else 0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="share" viewBox="0 0 {width} 8" width="{width}" height="8"'
        f' role="img" aria-label="{escape(says)}"><rect class="rest" width="{width}" height="8" rx="4" fill="#ddd"/>'
        f'<rect class="part" width="{filled:.1f}" height="8" rx="4" fill="#2563b8"/></svg>'
    )
