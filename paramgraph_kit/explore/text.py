"""Plain text of every view: the same bytes for the same trace, for terminals, logs and stored notebooks."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paramgraph_kit.explore.names import bytes_text, family_of, in_order, plural, runs_of_nodes, short, tensor_text
from paramgraph_kit.explore.pools import bar, pool_series, reserved_total, spark
from paramgraph_kit.trace.model import (
    EAGER,
    Capture,
    Failure,
    Launch,
    Node,
    Partition,
    PoolEvent,
    Proof,
    Trace,
    Word,
    WordKind,
)
from paramgraph_kit.trace.wording import failure_text, one_line

MOST_LINES = 60  # of a graph's text; the rest is counted, not shown


def summary(trace: Trace) -> str:
    """The whole trace in a few lines."""
    lines = [one_line(trace.title) or "trace", trace.source.label()]
    if compiled := [p for p in trace.partitions if p.graph != EAGER]:
        graphed = [p for p in compiled if p.graphed]
        kernels, inside = sum(p.kernels for p in compiled), sum(p.kernels for p in graphed)
        share = f", {inside:,} of {plural(kernels, 'kernel')}" if kernels else ""
        lines.append(f"  partitions  {len(graphed)} of {len(compiled)} graphed{share}")
    if eager := len(trace.partitions) - len(compiled):
        lines.append(f"  eager       in compiled calls, at {plural(eager, 'line')}: partitions() has them")
    for capture in trace.captures:
        lines.append(f"  {capture_line(capture)}")
    if trace.launches:
        lines.append(f"  launches    {launches_line(trace.launches)}")
    if idle := len(never_launched(trace)):
        which = "the capture" if len(trace.captures) == 1 else f"{idle} of the captures"
        was = "was" if idle == 1 else "were"
        lines.append(f"  warning     {which} above {was} never launched while this was recorded")
    for failure in trace.failures:
        where = f" at {one_line(failure.frame.label())}" if failure.frame else ""
        lines.append(f"  failure     {one_line(failure.title)}{where}")
    if trace.proofs:
        lines += [f"  numbers     {line}" for line in proof_lines(trace.proofs)]
    for series in pool_series(trace.pool_events):
        lines.append(f"  pool        {one_line(series.name)}: {bytes_text(series.peak_reserved)} reserved at the peak")
    return "\n".join(lines)


def never_launched(trace: Trace) -> list[Capture]:
    """Graphs that were for nothing, as far as this was recorded: a report's trace has no launches at all."""
    launched = {launch.capture for launch in trace.launches}
    ours = [each for each in trace.captures if each.allocations] if trace.pool_events else []
    return [each for each in ours if each.id not in launched]


def proof_lines(proofs: Sequence[Proof], most: int = 4) -> list[str]:
    """Every comparison with its result; of more than ``most`` how many were equal, and those that were not."""
    shown = proofs if len(proofs) <= most else [proof for proof in proofs if not proof.equal]
    lines = [f"{one_line(proof.label)}: {proof.text()}" for proof in shown]
    if len(proofs) > most:
        equal = [proof for proof in proofs if proof.equal]
        count = f"{len(equal)} of {len(proofs)} comparisons" if lines else f"all {len(proofs)} comparisons"
        lines.insert(0, f"{count} equal, {sum(proof.values for proof in equal):,} values")
    return lines


def capture_line(capture: Capture) -> str:
    """One capture in one line."""
    how = f", patched by {one_line(capture.patching)}" if capture.patching else ""
    return (
        f"capture {capture.id}: {plural(len(capture.nodes), 'node')}, {plural(len(capture.edges), 'edge')}, "
        f"{plural(capture.words_patched, 'word')} to patch, workspace {bytes_text(capture.workspace_bytes)}{how}"
    )


def launches_line(launches: Sequence[Launch]) -> str:
    """All launches in one line."""
    still = sum(launch.words_patched == 0 for launch in launches)
    copied = bytes_text(sum(launch.bytes_copied for launch in launches))
    text = f"{len(launches):,}, {still:,} of them patched nothing, {copied} copied"
    times = [launch.cpu_us for launch in launches if launch.cpu_us is not None]
    return text + (f", median {statistics.median(times):.1f} us on the CPU" if times else "")


def partitions(parts: Iterable[Partition]) -> str:
    """Every partition with its operations, or the reasons why it is not in a graph.

    >>> print(partitions([Partition(0, "forward 0", True, ("aten.mm", "aten.add"), 2)]))
    forward 0
      [graphed]   0  2 kernels  aten.mm, aten.add
    """
    lines: list[str] = []
    graph = None
    for part in in_order(parts):
        if part.graph != graph:
            graph = part.graph
            lines.append(one_line(graph))
        state = "[graphed]  " if part.graphed else "[ungraphed]"
        names = listing(part.operations)
        kernels = f"  {plural(part.kernels, 'kernel')}" if part.kernels else ""
        lines.append(f"  {state} {part.id}{kernels}" + (f"  {names}" if names else ""))
        lines += [f"      because {one_line(reason.label())}" for reason in part.reasons]
    return "\n".join(lines) or "no partitions"


def listing(names: Sequence[str], most: int = 6) -> str:
    """The first names, each once with its count, and how many more there are."""
    counts = Counter(one_line(name) for name in names)
    shown = [f"{name} x{count}" if count > 1 else name for name, count in list(counts.items())[:most]]
    if len(counts) > most:
        shown.append(f"and {len(counts) - most} more")
    return ", ".join(shown)


def graph(capture: Capture, width: int = 48) -> str:
    """A captured graph, runs of repeated nodes collapsed; at most 60 lines of nodes."""
    lines = [capture_line(capture)]
    body: list[str] = []
    for run in runs_of_nodes(capture):
        nodes = capture.nodes[run.start : run.start + run.period]
        if run.repeats > 1:
            first, last = nodes[0].index, capture.nodes[run.start + run.length - 1].index
            body.append(f"  {first:>5}-{last}  {run.repeats} times {plural(run.period, 'node')}:")
        body += [_node_line(node, width, inside=run.repeats > 1) for node in nodes]
    hidden = len(body) - MOST_LINES
    if hidden > 1:
        body = [*body[:MOST_LINES], f"  ... and {hidden} more lines"]
    return "\n".join(lines + body)


def _node_line(node: Node, width: int, inside: bool) -> str:
    pointers = sum(word.kind is WordKind.POINTER for word in node.words)
    at = " " * 5 if inside else f"{node.index:>5}"
    lane = f"  lane {node.lane}" if node.lane else ""
    patched = f"  {plural(pointers, 'pointer')}" if node.words else ""
    return f"  {at}  {family_of(node).word:<11} {short(node.name, width):<{width}}{patched}{lane}".rstrip()


def words(capture: Capture, node: Node) -> str:
    """Every word of a node's parameters, what it is and why we think so."""
    head = f"node {node.index}  {short(node.name, 60)}  {node.parameter_bytes} parameter bytes"
    if not node.words:
        return f"{head}\n  no words"
    return "\n".join([head, *(_word_line(capture, word) for word in node.words)])


def _word_line(capture: Capture, word: Word) -> str:
    text = f"  {word.offset:>5}  {word.kind:<7}  {word_meaning(capture, word)}"
    return f"{text}  ({one_line(word.evidence)})" if word.evidence else text.rstrip()


def word_meaning(capture: Capture, word: Word) -> str:
    """What a word holds: the allocation it points into, or its value."""
    if word.allocation is not None:
        memory = capture.allocations[word.allocation]
        delta = f" + {word.delta}" if word.delta else ""
        return f"{tensor_text(memory)}{delta}, {memory.role}, {bytes_text(memory.size)}"
    return "" if word.value is None else (str(word.value) if abs(word.value) < 1 << 32 else hex(word.value))


def failures(items: Sequence[Failure]) -> str:
    """All failures, one after another."""
    return "\n\n".join(failure_text(item) for item in items) or "no failures"


def pools(events: Sequence[PoolEvent], width: int = 40, *, top: int = 0, pad: int = 0) -> str:
    """Each pool as bars: reserved over time, then how much of the peak was live and is still reserved.

    Args:
        events: of the allocator.
        width: characters of a line of bars.
        top: bytes of a full bar, if not those of the largest pool.
        pad: characters for the names, if not those of the longest.
    """
    series = pool_series(events)
    if not series:
        return "no allocator events"
    top = top or max(pool.peak_reserved for pool in series)
    names = [short(pool.name, 16) for pool in series]
    pad = pad or max(len(name) for name in names)
    lines = [f"{'pool':<{pad}}  {'reserved over time':<{width}}  at the end"]
    for name, pool in zip(names, series, strict=True):
        for head, values, says in (
            (name, pool.reserved, ""),
            ("", pool.live, f" live, {bytes_text(pool.peak_live)} at the peak"),
        ):
            bars, last = spark(pool.held(values), width, top), values[-1]
            lines.append(f"{head:<{pad}}  {bars:<{width}}  {bar(last, top, 10)} {bytes_text(last)}{says}")
    return "\n".join(lines)


def pools_side_by_side(steps: Mapping[str, Trace], width: int = 40) -> str:
    """The pools of several traces one below the other, all on one scale, and what all pools together came to."""
    series = {name: pool_series(trace.pool_events) for name, trace in steps.items()}
    every = [pool for pools in series.values() for pool in pools]
    if not every:
        return "no allocator events"
    top = max(pool.peak_reserved for pool in every)
    pad = max(len(short(pool.name, 16)) for pool in every)
    parts = []
    for name, trace in steps.items():
        totals = reserved_total(series[name])
        says = (
            f": {bytes_text(max(totals))} reserved at the peak, {bytes_text(totals[-1])} at the end" if totals else ""
        )
        parts.append(f"{one_line(name)}{says}\n{pools(trace.pool_events, width, top=top, pad=pad)}")
    return "\n\n".join(parts)
