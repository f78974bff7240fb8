"""The report: what became graphs, what did not and why, and what it costs."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paramgraph_kit.backend.graphs_of_model import Model, around, graph_breaks
from paramgraph_kit.backend.recompiles import given_up, recompiled
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.backend.tracing import (
    capture_of,
    copied_each_launch,
    kernels_known,
    live_variants,
    partitions_of,
)
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.partition.fixed import Kept
from paramgraph_kit.trace.model import Capture, Reason, Role, Trace
from paramgraph_kit.trace.wording import bytes_text, one_line

NOTHING = 'nothing is compiled yet: call the model once, compiled with backend="paramgraph"'
EAGER_CALLS = (
    "if it was called, each call is eager, as after a graph break in a loop: TORCH_LOGS=graph_breaks says where"
)
LEGEND = {
    "partition": "a compiled graph, by the order of compiling, and a piece of it",
    "state": "graphed, or ungraphed for a reason that stands below",
    "kernels": "what one call launches without graphs",
    "nodes": "kernels, copies and fills of its largest graph",
    "graphs": "how many were captured: one for each set of shapes and plain values",
    "words": "8-byte parameters that hold an address, in its largest graph: what a launch at new addresses rewrites",
    "launches": "calls that were one launch of a graph",
    "patched": "launches that wrote addresses, as something had moved",
    "workspace": "bytes that a launch borrows from the allocator and gives back, at most",
    "graph bytes": "device memory that the graphs themselves hold",
}
HEADS = tuple(LEGEND)
MOST_NAMED = 3  # partitions in one line


class _Lines(str):
    """Text that a notebook shows as it is printed."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True, slots=True)
class Row:
    """One partition in numbers; sizes are bytes, and a number is None where nobody knows it."""

    graph: str  # "forward 0"
    partition: str  # "0", or "outside": launches of the compiled code that belong to no partition
    graphed: bool
    kernels: int | None
    nodes: int = 0
    executables: int = 0
    words: int = 0  # that a launch at new addresses rewrites, in the largest executable
    launches: int = 0
    patched: int = 0  # launches that had to patch
    workspace_bytes: int = 0  # the largest of its executables: they take turns
    graph_bytes: int = 0  # on the device, all its executables
    copied_bytes: int = 0  # of inputs, in all launches
    ungraphed_calls: int = 0
    patching: str = ""
    verified: int = 0  # launches whose results were compared with the ungraphed code's, all equal
    unordered: int = 0  # the same, but that they differed where the ungraphed code differs from itself
    differs: str = ""  # what the last two captures were of
    measured: str = ""  # what a graph took and what the ungraphed code, where that was asked for


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What was graphed, as text, as HTML, as ``rows`` and as a ``trace`` for explore and save.

    The trace has partitions and captures; single launches are recorded only under ``watch``.
    """

    rows: tuple[Row, ...]
    reasons: tuple[Reason, ...]
    trace: Trace
    of_one: bool = False  # it is about one model
    recompiled: tuple[tuple[str, str], ...] = ()  # functions with several graphs, and what the last one is for
    around: str = ""  # what of its calls runs eager around the compiled parts, and is not counted
    kept: tuple[Kept, ...] = ()  # tensors that would be made on the host and copied at each call, but are made once

    @property
    def kernels(self) -> tuple[int, int | None]:
        """(kernels launched from graphs, all kernels) in one call of everything; None if not all are known."""
        known = [row.kernels for row in self.rows]
        inside = sum(row.kernels or 0 for row in self.rows if row.graphed)
        return inside, None if None in known else sum(count or 0 for count in known)

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs that all launches so far have copied."""
        return sum(row.copied_bytes for row in self.rows)

    @property
    def graph_bytes(self) -> int:
        """Device memory that all executables hold."""
        return sum(row.graph_bytes for row in self.rows)

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace: each is borrowed from the caching allocator for one launch only."""
        return max((row.workspace_bytes for row in self.rows), default=0)

    def legend(self) -> str:
        """What each column says, a line each.

        >>> print(make_report().legend().splitlines()[0])
        partition    a compiled graph, by the order of compiling, and a piece of it
        """
        return _Lines("\n".join(f"{head:<11}  {says}" for head, says in LEGEND.items()))

    def __str__(self) -> str:
        lines = ["paramgraph report", self.trace.source.label()]
        if not self.rows:
            return "\n".join([*lines, *self._nothing(), *_reasons(self.reasons)])
        lines += _aligned([HEADS, *(_cells(row) for row in self.rows)])
        width = max(len(name) for name, _ in self._totals())
        lines += [f"{name:<{width}}  {value}" for name, value in self._totals()]
        return "\n".join([*lines, *_reasons(self.reasons)])

    def _nothing(self) -> list[str]:
        if any(reason.code == "recompile-limit" for reason in self.reasons):
            return []
        return [NOTHING, *([EAGER_CALLS] if self.of_one else [])]

    def __repr__(self) -> str:
        graphed = sum(row.graphed for row in self.rows)
        share = f", {self._share()} kernels in graphs" if self.rows else ""
        breaks = [reason for reason in self.reasons if reason.code == "graph-break"]
        eager = f", {self.around}" if self.around else ", eager at graph breaks" if breaks else ""
        return f"Report({graphed} of {len(self.rows)} partitions graphed{share}{eager})"

    def _share(self) -> str:
        inside, total = self.kernels
        if total is None:
            return f"{inside:,} of an unknown number of"
        return f"{inside:,} of {total:,}"

    def _scope(self) -> str:
        """What the share of kernels is a share of, where that is not all that runs; else the percentage."""
        inside, total = self.kernels
        idle = sum(row.kernels or 0 for row in self.rows if row.graphed and not row.launches)
        never = f", {idle:,} of them in graphs that were never launched" if idle else ""
        codes = [reason.code for reason in self.reasons]
        eager = self.around
        if not eager and (breaks := codes.count("graph-break")):
            eager = f"what runs at {breaks} graph break{'s' if breaks > 1 else ''} is eager"
        elif not eager and "recompile-limit" in codes:
            eager = "calls that fit none of them are eager"
        if eager:
            return f" of the compiled parts{never}; {eager}, and not counted"
        if never or not total:
            return never
        return f"{'' if self.of_one else ' of all that is compiled'} ({100 * inside / total:.0f} %)"

    def _ungraphed(self, count: int) -> str:
        if any(row.partition == "outside" and row.kernels is None for row in self.rows):
            return f"{count:,} of partitions, and each of what has none" if count else "each"
        return f"{count:,}, the capturing ones included"

    def _totals(self) -> list[tuple[str, str]]:
        patching = sorted({row.patching for row in self.rows if row.patching})
        ungraphed = sum(row.ungraphed_calls for row in self.rows)
        launches, copied = sum(row.launches for row in self.rows), self.copied_bytes
        verified = sum(row.verified for row in self.rows)
        shown = [("compared and equal", f"{verified:,} launches")] if verified else []
        if unordered := sum(row.unordered for row in self.rows):
            text = f"{unordered:,} launches, which differed only where ungraphed calls differ among themselves"
            shown.append(("compared and alike", text))
        unused = [row for row in self.rows if row.graphed and not row.launches]
        idle = [row for row in unused if row.executables > 1]
        shown += [
            (
                "never launched",
                f"{row.graph}, {row.partition}: captured {row.executables} times, each call is a new one"
                + (f": {row.differs}" if row.differs else ""),
            )
            for row in idle
        ]
        captures = self.trace.captures
        if self.of_one and not idle and not launches and not self.reasons and (why := _newest(captures)):
            shown.append(("never launched", f"{len(captures)} graphs, each call is a new one: {why}"))
        elif once := [f"{row.graph}, {row.partition}" for row in unused if row.executables == 1]:
            more = f", and {len(once) - MOST_NAMED} more" if len(once) > MOST_NAMED else ""
            names = "; ".join(once[:MOST_NAMED]) + more
            shown.append(("never launched", f"{names}: captured once, and not called again like that"))
        shown += self.recompiled
        shown += [(f"{row.graph}, {row.partition} took", row.measured) for row in self.rows if row.measured]
        if self.kept:
            frames = dict.fromkeys(each.frame for each in self.kept if each.frame is not None)
            lines = ", ".join(f"{Path(frame.file).name}:{frame.line}" for frame in frames)
            where = f" ({lines})" if lines else ""
            size = bytes_text(sum(each.nbytes for each in self.kept))
            shown.append(("made once, on the device", f"{len(self.kept):,} tensors of the host, {size}{where}"))
        return [
            ("kernels in graphs", self._share().removesuffix(" of") + self._scope()),
            ("inputs copied", f"{copied:,} bytes in {launches:,} launches" if copied else "0 bytes a call"),
            ("addresses patched by", ", ".join(patching) or "nobody: there is no graph"),
            ("calls run ungraphed", self._ungraphed(ungraphed)),
            ("held by graphs", f"{self.graph_bytes:,} bytes"),
            ("largest workspace", f"{self.workspace_bytes:,} bytes, borrowed for each launch"),
            *shown,
        ]

    def _repr_html_(self) -> str:
        source = html.escape(self.trace.source.label())
        top = f"<p><b>paramgraph report</b><br>{source}</p>"
        why = "".join(f"<li>{html.escape(_reason(reason))}</li>" for reason in self.reasons)
        listed = f"<p>Not in graphs</p><ul>{why}</ul>" if why else ""
        if not self.rows:
            return top + "".join(f"<p>{html.escape(text)}</p>" for text in self._nothing()) + listed
        heads = "".join(f'<th title="{html.escape(says)}">{html.escape(head)}</th>' for head, says in LEGEND.items())
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in self.rows
        )
        totals = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in self._totals()
        )
        return f"{top}<table><tr>{heads}</tr>{body}</table><table>{totals}</table>{listed}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}


def make_report(model: Any = None) -> Report:
    """The report of a compiled model, or of everything alive; see ``paramgraph_kit.report``."""
    mine = None if model is None else Model(model)
    graphs = [graph for graph in compiled_graphs() if mine is None or mine.has(graph)]
    rows: list[Row] = []
    reasons: dict[Reason, None] = {}
    trace = Trace(driver().source(), "report")
    for partition, graph, launcher in partitions_of(graphs):
        trace.partitions.append(partition)
        reasons.update(dict.fromkeys(partition.reasons))
        if launcher is None:
            counted = graph.launchers or graph.outside or any(piece.kernels for piece in graph.pieces)
            _add_outside(rows, graph.name, partition.kernels if counted else None)
            continue
        variants = live_variants(launcher)
        for variant in variants:
            trace.captures.append(capture_of(launcher, variant, len(trace.captures), partition.id))
        rows.append(
            Row(
                graph.name,
                str(graph.launchers.index(launcher)),
                partition.graphed,
                kernels_known(graph, launcher),
                max((len(v.captured.recording.nodes) for v in variants), default=0),
                len(variants),
                max((v.plan.words for v in variants), default=0),
                sum(v.state.launches for v in variants),
                sum(v.state.patches for v in variants),
                max((v.plan.workspace_bytes for v in variants), default=0),
                sum(v.device_bytes for v in variants),
                sum(copied_each_launch(launcher, v) * v.state.launches // len(v.plan.stages) for v in variants),
                launcher.ungraphed_calls,
                variants[0].patching if variants else "",
                sum(v.probation.verified for v in variants),
                sum(v.probation.unordered for v in variants),
                launcher.differs if graph.name.startswith("step ") else _differs(launcher),
                "; ".join(v.probation.measured.label for v in variants if v.probation.measured),
            )
        )
    of_its_code = compiled_graphs() if mine is None else [graph for graph in compiled_graphs() if mine.has_code(graph)]
    reasons.update(dict.fromkeys([*graph_breaks(mine), *given_up(of_its_code)]))
    eager, why = around(mine, graphs) if mine is not None else ("", None)
    reasons.update({why: None} if why is not None else {})
    kept = tuple(each for graph in graphs for each in graph.kept)
    return Report(tuple(rows), tuple(reasons), trace, mine is not None, tuple(recompiled(graphs)), eager, kept)


def shared_with(model: Any) -> str:
    """What nothing tells apart from a model, as a sentence; "" where nothing is."""
    return Model(model).shared()


def _differs(launcher: Launcher) -> str:
    """What its last two captures differ in: the input, and what of it."""
    before, last = ((), (), *launcher.variants)[-2:]
    if not before:
        return ""
    found = []
    for n, (was, now) in enumerate(zip(before[1:], last[1:], strict=True)):
        name = launcher.code.names[n] if n < len(launcher.code.names) else ""
        name = name or f"input {n}"
        if was == now:
            continue
        if "scalar" in (was[0], now[0]) or len(was) != len(now) or len(was) < 3:
            found.append(f"{name} was {_short(was)}, then {_short(now)}")
        elif shapes := [(a, b) for a, b in zip(was, now, strict=True) if a != b and isinstance(a, tuple)]:
            found.append(f"{name} had the shape {tuple(shapes[0][0])}, then {tuple(shapes[0][1])}")
        elif was[0] != now[0]:
            found.append(f"{name} began at a multiple of {was[0]} bytes, then of {now[0]}")
        else:
            found.append(f"{name} is a conjugate or a negative, then not")
    more = f", and {len(found) - 2} more" if len(found) > 2 else ""
    return ", ".join(found[:2]) + more or "a switch of torch's is another"


def _newest(captures: Sequence[Capture]) -> str:
    """What the last two graphs of one function differ in, as far as their inputs tell; "" if they are of several."""
    if len(captures) < 3 or len({tuple(node.name for node in each.nodes) for each in captures}) > 1:
        return ""
    before, last = ([a for a in each.allocations if a.role is Role.INPUT] for each in captures[-2:])
    if [a.name for a in before] != [a.name for a in last]:
        return ""
    found = [
        f"{b.name} had the shape {a.shape}, then {b.shape}"
        for a, b in zip(before, last, strict=True)
        if a.shape != b.shape
    ]
    return ", ".join(found[:2]) or "other numbers among its arguments, or what else its code looks at"


def _short(key: tuple[Any, ...]) -> str:
    return str(float.fromhex(key[-1]) if key[1] is float else key[-1])


def _add_outside(rows: list[Row], graph: str, kernels: int | None) -> None:
    """One row for all that a compiled graph runs outside of its partitions, however many pieces there are."""
    last = rows[-1] if rows else None
    if last is not None and (last.graph, last.partition) == (graph, "outside"):
        rows[-1] = replace(last, kernels=(last.kernels or 0) + (kernels or 0))
    else:
        rows.append(Row(graph, "outside", False, kernels))


def _cells(row: Row) -> tuple[str, ...]:
    kernels = "unknown" if row.kernels is None else f"{row.kernels:,}"
    name, state = f"{row.graph}, {row.partition}", "graphed" if row.graphed else "ungraphed"
    if not row.graphed:
        return (name, state, kernels, *[""] * 7)
    numbers = (row.nodes, row.executables, row.words, row.launches, row.patched, row.workspace_bytes, row.graph_bytes)
    return (name, state, kernels, *(f"{number:,}" for number in numbers))


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    return [
        "  ".join(
            f"{cell:<{width}}" if n < 2 else f"{cell:>{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _reasons(reasons: Iterable[Reason]) -> list[str]:
    lines = [f"  {_reason(reason)}" for reason in reasons]
    return ["not in graphs, because", *lines] if lines else []


def _reason(reason: Reason) -> str:
    """With the code that docs/launcher.md explains."""
    label = reason.label()
    return one_line(label if label.startswith("graph break: ") else f"{reason.code}: {label}")
