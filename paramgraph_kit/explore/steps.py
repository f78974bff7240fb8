"""What changed between two or more traces: each figure counted in the traces, none written by hand."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Any

from paramgraph_kit.explore.names import bytes_text, plural
from paramgraph_kit.explore.pools import pool_series, reserved_total
from paramgraph_kit.explore.text import never_launched
from paramgraph_kit.trace.model import EAGER, NodeKind, Origin, PoolAction, Proof, Trace
from paramgraph_kit.trace.wording import one_line

NOTHING = "not recorded"
MOST_PROOFS = 4  # rows of numbers that were compared; more of them are counted
WIDE = 28  # characters of a column of text: five steps and the names of their figures fit beside a notebook's files


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure at each step, as text; ``NOTHING`` where a trace does not say."""

    name: str
    values: tuple[str, ...]

    @property
    def changed(self) -> tuple[bool, ...]:
        """For each step whether the figure differs from the last one known before it."""
        flags, last = [], None
        for value in self.values:
            flags.append(last is not None and value not in (last, NOTHING))
            last = last if value == NOTHING else value
        return tuple(flags)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every figure that at least one step knows."""

    steps: tuple[str, ...]
    facts: tuple[Fact, ...]

    def text(self) -> str:
        """A table: one column for each step, ``*`` where a figure changed; nothing where no trace knows a figure."""
        if not self.facts:
            return ""
        rows = [("", *self.steps)]
        for fact in self.facts:
            marked = (f"{value} *" if new else value for value, new in zip(fact.values, fact.changed, strict=True))
            rows.append((fact.name, *marked))
        wrapped = [[textwrap.wrap(cell, WIDE) for cell in row] for row in rows]
        broken = [row for cells in wrapped for row in zip_longest(*cells, fillvalue="")]
        widths = [max(len(row[n]) for row in broken) for n in range(len(self.steps) + 1)]
        lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in broken]
        return "\n".join(line.rstrip() for line in lines)

    def html(self) -> str:
        """The same as an HTML table, bold where a figure changed; nothing where no trace knows a figure."""
        if not self.facts:
            return ""
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.steps))
        rows = "".join(f"<tr><th>{escape(fact.name)}</th>{_cells(fact)}</tr>" for fact in self.facts)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def as_json(self) -> dict[str, Any]:
        """The same for the front end."""
        return {"facts": [{"name": f.name, "values": f.values, "changed": f.changed} for f in self.facts]}


def _cells(fact: Fact) -> str:
    cells = zip(map(escape, fact.values), fact.changed, strict=True)
    return "".join(f"<td>{f'<b>{value}</b>' if new else value}</td>" for value, new in cells)


def comparison(steps: Mapping[str, Trace]) -> Comparison:
    """Compare traces step by step.

    >>> from paramgraph_kit.trace import Failure, Origin, Source
    >>> source = Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20")
    >>> broken = Trace(source, failures=[Failure("sync-item", "A value was read back", "...")])
    >>> print(comparison({"broken": broken, "fixed": Trace(source)}).text())
              broken                    fixed
    failures  1: A value was read back  none *
    """
    traces = list(steps.values())
    facts = [Fact(name, tuple(tell(trace) for trace in traces)) for name, tell in _FACTS]
    facts[1:1] = _proofs(traces)
    facts.append(Fact("same kernels as before", (NOTHING, *map(_same_kernels, traces, traces[1:]))))
    known = tuple(fact for fact in facts if any(value not in (NOTHING, "none") for value in fact.values))
    return Comparison(tuple(one_line(name) for name in steps), known)


def _failures(trace: Trace) -> str:
    if not trace.failures:
        return "none"
    return f"{len(trace.failures)}: {one_line(trace.failures[0].title)}"


def _proofs(traces: Sequence[Trace]) -> list[Fact]:
    """What comparisons came to, one row for each thing that was compared; only those that were made count."""
    labels = list(dict.fromkeys(proof.label for trace in traces for proof in trace.proofs))
    if len(labels) > MOST_PROOFS:
        return [Fact("numbers compared", tuple(proofs_text(trace.proofs) or NOTHING for trace in traces))]
    return [
        Fact(
            f"numbers: {one_line(label)}",
            tuple(proofs_text([p for p in trace.proofs if p.label == label]) or NOTHING for trace in traces),
        )
        for label in labels
    ]


def proofs_text(proofs: Sequence[Proof]) -> str:
    """Comparisons in a few words: the worst of them where any differs; "" where none was made.

    >>> proofs_text([Proof("a", 1, 4, 0), Proof("b", 1, 4, 1, 0.5)])
    '1 of 2 comparisons equal; 1 of 4 values differ, by 0.5 at most'
    """
    if not proofs:
        return ""
    if len(proofs) == 1:
        return proofs[0].text()
    wrong = [proof for proof in proofs if not proof.equal]
    if not wrong:
        return f"equal, {sum(proof.values for proof in proofs):,} values in {len(proofs)} comparisons"
    worst = max(wrong, key=lambda proof: (proof.largest is None, proof.largest or 0.0, proof.differing))
    return f"{len(proofs) - len(wrong)} of {len(proofs)} comparisons equal; {worst.text()}"


def _partitions(trace: Trace) -> str:
    compiled = [p for p in trace.partitions if p.graph != EAGER]
    return f"{sum(p.graphed for p in compiled)} of {len(compiled)}" if compiled else NOTHING


def _kernels(trace: Trace) -> str:
    total = sum(p.kernels for p in trace.partitions)
    inside = sum(p.kernels for p in trace.partitions if p.graphed)
    idle = {capture.id for capture in never_launched(trace)}
    launched = {capture.partition for capture in trace.captures if capture.id not in idle}
    never = sum(p.kernels for p in trace.partitions if p.graphed and idle and p.id not in launched)
    text = f"{inside:,} of {total:,}{' compiled' if _eager_lines(trace) else ''}"
    return NOTHING if not total else f"{text}, {never:,} of them never launched" if never else text


def _eager_lines(trace: Trace) -> int:
    return sum(p.graph == EAGER for p in trace.partitions)


def _eager(trace: Trace) -> str:
    if lines := _eager_lines(trace):
        return f"at {plural(lines, 'line')}"
    heard = trace.source.origin is Origin.SIMULATED and not trace.source.from_file  # older versions heard of nothing
    return "none" if heard and trace.partitions else NOTHING


def _nodes(trace: Trace) -> str:
    return f"{sum(len(c.nodes) for c in trace.captures):,}" if trace.captures else NOTHING


def _copies(trace: Trace) -> str:
    kinds = (n.lowered_from or n.kind for c in trace.captures for n in c.nodes)
    return f"{sum(kind is NodeKind.MEMCPY for kind in kinds):,}" if trace.captures else NOTHING


def _workspace(trace: Trace) -> str:
    planned = [c for c in trace.captures if c.allocations]  # a graph that somebody else captured has none of ours
    return bytes_text(sum(c.workspace_bytes for c in planned)) if planned else NOTHING


def _launches(trace: Trace) -> str:
    return f"{len(trace.launches):,}" if trace.launches else NOTHING


def _copied(trace: Trace) -> str:
    return bytes_text(sum(x.bytes_copied for x in trace.launches)) if trace.launches else NOTHING


def _patched(trace: Trace) -> str:
    return f"{sum(x.words_patched for x in trace.launches):,}" if trace.launches else NOTHING


def _cpu(trace: Trace) -> str:
    times = [x.cpu_us for x in trace.launches if x.cpu_us is not None]
    return f"{statistics.median(times):.1f} µs" if times else NOTHING


def private_pools(trace: Trace) -> str:
    """What private pools reserve at the most, without those that were there before."""
    if not trace.pool_events:
        return NOTHING
    # Pools of an earlier step are not this one's, also where they are given back now: only what grows.
    first, last = trace.pool_events[0].time, trace.pool_events[-1].time
    grows = {
        event.pool
        for event in trace.pool_events
        if (event.time > first and event.action in (PoolAction.SEGMENT_ALLOC, PoolAction.ALLOC)) or first == last
    }
    private = [series for series in pool_series(trace.pool_events) if series.name in grows - {"default"}]
    if not private:
        return "0 B"
    return f"{bytes_text(sum(s.peak_reserved for s in private))} in {plural(len(private), 'pool')}"


def _reserved(trace: Trace) -> str:
    totals = reserved_total(pool_series(trace.pool_events))
    return bytes_text(max(totals)) if totals else NOTHING


def _reserved_at_the_end(trace: Trace) -> str:
    totals = reserved_total(pool_series(trace.pool_events))
    return bytes_text(totals[-1]) if totals else NOTHING


def _reserved_before(trace: Trace) -> str:
    return _as_it_began(trace, reserved_total(pool_series(trace.pool_events)))


def _default(trace: Trace) -> str:
    live = _live(trace)
    return bytes_text(max(live)) if live else NOTHING


def _live_before(trace: Trace) -> str:
    return _as_it_began(trace, _live(trace))


def _live(trace: Trace) -> Sequence[int]:
    return next((series.live for series in pool_series(trace.pool_events) if series.name == "default"), ())


def _as_it_began(trace: Trace, values: Sequence[int]) -> str:
    """What was held as the recording began, which several events of one time tell: an earlier step's."""
    begins = sum(event.time == trace.pool_events[0].time for event in trace.pool_events) > 1 if values else False
    return bytes_text(values[0]) if begins and values[0] else NOTHING


def _same_kernels(before: Trace, after: Trace) -> str:
    old, new = _kernel_counts(before), _kernel_counts(after)
    if not old or not new:
        return NOTHING
    shared = (old & new).total()
    return f"{'all ' if shared == old.total() == new.total() else ''}{shared:,} of {max(old.total(), new.total()):,}"


def _kernel_counts(trace: Trace) -> Counter[tuple[str, tuple[int, int, int], tuple[int, int, int]]]:
    """Without the copies and fills that were lowered to kernels."""
    kernels = (n for c in trace.captures for n in c.nodes if n.kind is NodeKind.KERNEL and n.lowered_from is None)
    return Counter((n.name, n.grid, n.block) for n in kernels)


_FACTS: tuple[tuple[str, Callable[[Trace], str]], ...] = (
    ("failures", _failures),
    ("partitions graphed", _partitions),
    ("kernels in graphs", _kernels),
    ("eager in compiled calls", _eager),
    ("graph nodes", _nodes),
    ("copy nodes", _copies),
    ("launches", _launches),
    ("words patched", _patched),
    ("bytes copied at launch", _copied),
    ("CPU time of a launch", _cpu),
    ("workspace", _workspace),
    ("reserved in all pools, peak", _reserved),
    ("at the end", _reserved_at_the_end),
    ("from before", _reserved_before),
    ("private pools, peak", private_pools),
    ("live in the default pool, peak", _default),
    ("live from before", _live_before),
)
