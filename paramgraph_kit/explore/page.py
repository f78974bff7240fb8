"""One trace, or several, as one HTML page: no network, light and dark, complete also where no script may run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from paramgraph_kit.explore import text
from paramgraph_kit.explore.bundle import PAGE_DATA, PAGE_PLACE, front_end, packed, script_hash
from paramgraph_kit.explore.charts import pool_chart, share_bar
from paramgraph_kit.explore.journal import Journal
from paramgraph_kit.explore.names import ALL_FAMILIES, bytes_text, in_order, plural, short
from paramgraph_kit.explore.picture import draw, inline_svg
from paramgraph_kit.explore.pools import pool_series
from paramgraph_kit.explore.steps import comparison, private_pools
from paramgraph_kit.explore.style import style_sheet
from paramgraph_kit.trace.cards import failure_card
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.files import written
from paramgraph_kit.trace.model import Capture, Failure, Frame, Launch, Node, Partition, Trace
from paramgraph_kit.trace.wording import one_line

MOST_PICTURE_BYTES = 170_000  # of SVG, all captures together; further captures are shown as text
MOST_DRAWN = 120  # vertices of one picture: more cannot be read on a page
MOST_ROWS = 200
WORD_NODES = 3  # nodes of each capture whose words are listed


def to_html(traces: Trace | Mapping[str, Trace], path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write the page and return its path.

    Args:
        traces: what to show: a trace, or the steps of a story by name.
        path: where to write.
        title: the page's heading; if None the trace's own title, or the names of the steps.

    Raises:
        TraceError: the file cannot be written, or a trace holds a value that cannot be shown.

    Examples:
        >>> to_html(trace, "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    return written(path, page(traces, title=title))


def page(traces: Trace | Mapping[str, Trace], *, title: str | None = None) -> str:
    """The page as text; the same traces give the same text. Of several steps the last is shown without a script,
    with the failures of all.
    """
    steps = {traces.title or "trace": traces} if isinstance(traces, Trace) else dict(traces)
    trace = list(steps.values())[-1]
    heading = one_line(title or (trace.title if len(steps) < 2 else " → ".join(steps))) or "paramgraph trace"
    sections = [
        _live(steps),
        _changes(steps),
        _proofs(steps),
        _partitions(trace.partitions),
        _captures(trace),
        _launches(trace.launches),
        _failures([failure for each in steps.values() for failure in each.failures]),
        _memory(trace),
    ]
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{script_hash()}'"
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(heading)}</title>\n<style>\n{style_sheet()}\n</style></head>\n<body><main>\n"
    )
    source = f'<span class="source"><span class="tag">{trace.source.origin}</span>{escape(trace.source.label())}</span>'
    top = f"<header><h1>{escape(heading)}</h1>{source}{_tiles(trace, tuple(steps))}</header>\n"
    foot = f"<footer>Made by paramgraph_kit. Source: {escape(trace.source.label())}.</footer>\n</main>\n"
    script = f'<script type="module">{front_end()}</script></body></html>\n'
    return head + top + "\n".join(section for section in sections if section) + "\n" + foot + script


def _live(steps: Mapping[str, Trace]) -> str:
    """A place for the live view, hidden until the script has found its data."""
    journal = Journal(steps)
    journal.advance()
    place = f'<div id="{PAGE_PLACE}" class="live" hidden></div>'
    return f'{place}<div id="{PAGE_DATA}" hidden>{packed(journal.whole())}</div>'


def _changes(steps: Mapping[str, Trace]) -> str:
    if len(steps) < 2:
        return ""
    lead = "Counted in the traces, step by step; below is the last step, with the failures of all."
    return _section("What changed", lead, [f'<div class="card scroll">{comparison(steps).html()}</div>'])


def _proofs(steps: Mapping[str, Trace]) -> str:
    rows = [
        "<tr>" + "".join(f"<td>{escape(one_line(cell))}</td>" for cell in (name, proof.label, proof.text())) + "</tr>"
        for name, trace in steps.items()
        for proof in trace.proofs[:MOST_ROWS]
    ]
    if not rows:
        return ""
    head = "<tr><th>step</th><th>compared</th><th>result</th></tr>"
    table = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    lead = "Values that were compared bit by bit while this was recorded."
    return _section("Numbers", lead, [f'<div class="card scroll">{table}</div>'])


def _tiles(trace: Trace, steps: tuple[str, ...]) -> str:
    tiles: list[tuple[str, str]] = []
    if len(steps) > 1:
        tiles.append((f"last of {len(steps)} steps", escape(short(steps[-1], 13))))
    if trace.partitions:
        graphed = sum(p.graphed for p in trace.partitions)
        tiles.append(("graphed", f"{graphed} of {len(trace.partitions)}"))
    if trace.captures:
        tiles.append(("nodes", f"{sum(len(c.nodes) for c in trace.captures):,}"))
        tiles.append(("words to patch", f"{sum(c.words_patched for c in trace.captures):,}"))
    if trace.launches:
        tiles.append(("launches", f"{len(trace.launches):,}"))
        tiles.append(("bytes copied", bytes_text(sum(x.bytes_copied for x in trace.launches))))
    if trace.failures:
        tiles.append(("failures", str(len(trace.failures))))
    if trace.proofs:
        tiles.append(("comparisons equal", f"{sum(p.equal for p in trace.proofs)} of {len(trace.proofs)}"))
    if trace.pool_events:
        tiles.append(("private pools", private_pools(trace).partition(" in ")[0]))
    cells = "".join(f'<div class="tile"><dt>{name}</dt><dd>{value}</dd></div>' for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>' if tiles else ""


def _section(name: str, lead: str, body: Iterable[str]) -> str:
    return f'<section><h2>{name}</h2><p class="lead">{lead}</p>\n' + "\n".join(body) + "</section>"


def _as_text(label: str, content: str) -> str:
    return f"<details><summary>{label} as text</summary><pre>{escape(content)}</pre></details>"


def _frame(frame: Frame | None) -> str:
    if frame is None:
        return ""
    place = f"{one_line(frame.file)}:{frame.line}"
    line = f" <code>{escape(short(frame.text, 100))}</code>" if frame.text else ""
    return f'<span class="mono">{escape(place)}</span>{line}'


def _partitions(parts: Sequence[Partition]) -> str:
    if not parts:
        return ""
    body: list[str] = []
    for graph in dict.fromkeys(part.graph for part in parts):
        inside = in_order(part for part in parts if part.graph == graph)
        total, graphed = sum(p.kernels for p in inside), sum(p.kernels for p in inside if p.graphed)
        says = f"{graphed:,} of {plural(total, 'kernel')} in graphs" if total else "kernels not counted"
        share = share_bar(graphed, total, says) if total else ""
        rows = "".join(_partition_row(part) for part in inside[:MOST_ROWS])
        more = f"<p>and {len(inside) - MOST_ROWS} more</p>" if len(inside) > MOST_ROWS else ""
        heads = (
            '<th class="fix">partition</th><th class="fix">state</th><th class="n fix">kernels</th><th>operations</th>'
        )
        body.append(
            f'<div class="card"><h3>{escape(one_line(graph))} — {says}</h3>{share}'
            f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{more}</div>'
        )
    body.append(_as_text("Partitions", text.partitions(parts)))
    return _section("Partitions", "What became a CUDA graph, and the reason for everything that did not.", body)


def _partition_row(part: Partition) -> str:
    state = '<span class="tag yes">graphed</span>' if part.graphed else '<span class="tag no">ungraphed</span>'
    cell = escape(text.listing(part.operations))
    for reason in part.reasons:
        operation = f" (<code>{escape(one_line(reason.operation))}</code>)" if reason.operation else ""
        where = f" at {_frame(reason.frame)}" if reason.frame else ""
        cell += f'<div class="why">because {escape(one_line(reason.message))}{operation}{where}</div>'
    kernels = f"{part.kernels:,}" if part.kernels else ""
    first = f'<td class="fix">{part.id}</td><td class="fix">{state}</td><td class="n fix">{kernels}</td>'
    return f"<tr>{first}<td>{cell}</td></tr>"


def _captures(trace: Trace) -> str:
    body: list[str] = []
    left = MOST_PICTURE_BYTES
    for capture in trace.captures:
        picture, used = _picture(capture, trace, left)
        left -= used
        body.append(f"<h3>{escape(text.capture_line(capture))}</h3>")
        body.append(picture)
        body += [_words(capture, node) for node in [n for n in capture.nodes if n.words][:WORD_NODES]]
    lead = "Nodes in the order that the GPU must keep. Only words that are pointers are rewritten before a launch."
    return _section("Captured graphs", lead, body) if body else ""


def _picture(capture: Capture, trace: Trace, left: int) -> tuple[str, int]:
    picture = draw(capture, trace.source, most=MOST_DRAWN)
    try:
        svg = inline_svg(picture.svg())
    except UnsupportedError as error:
        return f"<p>{escape(str(error))}</p><pre>{escape(picture.text)}</pre>", 0
    if len(svg.encode()) > left:
        return f"<p>Shown as text, to keep this page small.</p><pre>{escape(picture.text)}</pre>", 0
    says = escape(one_line(f"{picture.title}; the same as text follows"))
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{says}"', 1)
    drawn = [family for family in ALL_FAMILIES if family.word in picture.families]
    legend = "".join(f'<li><i class="{family.key}"></i>{family.word}</li>' for family in drawn)
    card = f'<div class="card"><div class="dag" tabindex="0">{svg}</div><ul class="legend">{legend}</ul></div>'
    return card + _as_text("Graph", picture.text), len(svg.encode())


def _words(capture: Capture, node: Node) -> str:
    rows = "".join(
        f'<tr><td class="n">{word.offset}</td><td>{word.kind}</td><td>{escape(text.word_meaning(capture, word))}</td>'
        f"<td>{escape(one_line(word.evidence))}</td></tr>"
        for word in node.words[:MOST_ROWS]
    )
    name = f"Words of node {node.index}, {short(node.name, 60)}"
    heads = '<th class="n">offset</th><th>class</th><th>what it holds</th><th>evidence</th>'
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<details><summary>{escape(name)}</summary><div class="card scroll">{table}</div></details>'


def _launches(launches: Sequence[Launch]) -> str:
    if not launches:
        return ""
    rows = []
    for capture in sorted({launch.capture for launch in launches}):
        mine = [launch for launch in launches if launch.capture == capture]
        times = [launch.cpu_us for launch in mine if launch.cpu_us is not None]
        cells = [
            str(capture),
            f"{len(mine):,}",
            f"{sum(x.words_patched == 0 for x in mine):,}",
            f"{statistics.median(x.moved for x in mine):g}",
            f"{max(x.words_patched for x in mine):,}",
            bytes_text(sum(x.bytes_copied for x in mine)),
            f"{statistics.median(times):.1f} µs" if times else "not measured",
        ]
        rows.append("<tr>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>")
    heads = (
        "capture",
        "launches",
        "patched nothing",
        "slots moved, median",
        "words patched, most",
        "copied",
        "CPU, median",
    )
    head = "".join(f'<th class="n">{name}</th>' for name in heads)
    table = (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )
    lead = "A launch writes today's addresses into the graph; where none has moved, it writes nothing."
    return _section("Launches", lead, [table, _as_text("Launches", text.launches_line(launches))])


def _failures(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    cards = [failure_card(failure) for failure in failures[:MOST_ROWS]]
    return _section("Failures", "The line of yours that stopped the capture, why, and what to write instead.", cards)


def _memory(trace: Trace) -> str:
    if not trace.pool_events:
        return ""
    says = text.pools(trace.pool_events)
    chart = pool_chart(pool_series(trace.pool_events), "; ".join(says.splitlines()[1:]))
    lead = (
        "The line is what a pool has reserved, the area inside it what is live; private pools keep what they reserve."
    )
    return _section("Memory", lead, [f'<div class="card">{chart}</div>', _as_text("Memory", says)])
