"""What the backend did, as the plain data of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from paramgraph_kit.backend.allocations import allocations_of, module_by_parameters, told
from paramgraph_kit.backend.generated_code import of_nodes
from paramgraph_kit.backend.lanes import lanes_of
from paramgraph_kit.backend.registry import CompiledGraph, Piece
from paramgraph_kit.capture.pair import TRITONS
from paramgraph_kit.capture.words import complete
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.lines import frame_at, frame_of_line
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch.launcher import Launcher, Variant
from paramgraph_kit.partition.frames import place_behind
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.model import Capture, Node, NodeKind, Partition, Reason, Trace

NOT_CALLED = Reason("not-called", "not called yet: the first call captures it")
ELSEWHERE = Reason(
    "called-elsewhere",
    "called only inside another capture or a whole step, which has its kernels itself, or under forward-mode gradients",
)
WARMING = Reason(
    "not-called",
    "called too few times: the first call of a step runs as it is, and so does one that ends in an error; the next of"
    " the same shapes is captured",
)
MOST_SOURCE = 20_000  # characters of one kernel's text


def live_variants(launcher: Launcher) -> list[Variant]:
    """The executables of a partition, oldest first."""
    return [variant for variant in list(launcher.variants.values()) if variant is not None]


def kernels_of(variant: Variant) -> int:
    """How many kernels one launch runs."""
    return sum(node.kind is NodeKind.KERNEL for node in variant.captured.recording.nodes)


def copied_each_launch(launcher: Launcher, variant: Variant) -> int:
    """Bytes of inputs that one launch copies because their alignment is less than a kernel assumes."""
    specs = [variant.captured.specs[position] for position in launcher.code.aligned()]
    return sum(spec.nbytes for spec in specs if spec is not None and spec.alignment < TRITONS)


def kernels_known(graph: CompiledGraph, launcher: Launcher) -> int | None:
    """How many kernels one call of a partition runs, graphed or not; None if nobody counted."""
    variants = live_variants(launcher)
    return kernels_of(variants[0]) if variants else graph.kernels.get(launcher.name)


def partition_of(graph: CompiledGraph, launcher: Launcher, number: int) -> Partition:
    """One partition that has a launcher."""
    variants = live_variants(launcher)
    reasons = tuple(launcher.reasons)
    if not variants and not reasons:
        called = WARMING if graph.name.startswith("step ") else ELSEWHERE
        reasons = (called if launcher.ungraphed_calls else NOT_CALLED,)
    return Partition(
        number,
        graph.name,
        bool(variants),
        graph.operations.get(launcher.name, ()),
        kernels_known(graph, launcher) or 0,
        reasons,
        graph.position(graph.positions.get(launcher.name)),
    )


def rest_of(graph: CompiledGraph, number: int) -> list[Partition]:
    """All of a compiled graph that has no launcher, as ungraphed partitions from ``number`` on, each in its place.

    A reason that belongs to no single place goes to the only one, or has a partition without kernels.
    """
    reasons = tuple(reason for reason in graph.reasons if reason.code != "no-kernels")
    pieces = [piece for piece in graph.pieces if piece.kernels or piece.reasons]
    told = {reason for piece in pieces for reason in piece.reasons}
    others = tuple(reason for reason in reasons if reason not in told)
    if len(pieces) == 1:
        pieces, others = [replace(pieces[0], reasons=(*pieces[0].reasons, *others))], ()
    hidden = graph.outside - sum(piece.kernels for piece in pieces)
    if others or hidden > 0:
        pieces.append(Piece((), max(hidden, 0), reasons=others))
    return [
        Partition(
            number + n,
            graph.name,
            False,
            piece.operations or tuple(reason.operation for reason in piece.reasons if reason.operation),
            piece.kernels,
            piece.reasons,
            graph.position(piece.place),
        )
        for n, piece in enumerate(pieces)
    ]


def partitions_of(graphs: Iterable[CompiledGraph]) -> Iterator[tuple[Partition, CompiledGraph, Launcher | None]]:
    """Every partition of these graphs, numbered through; those without a launcher were never to be graphed."""
    number = 0
    for graph in graphs:
        for launcher in graph.launchers:
            yield partition_of(graph, launcher, number), graph, launcher
            number += 1
        for rest in rest_of(graph, number):
            yield rest, graph, None
            number += 1


def capture_of(launcher: Launcher, variant: Variant, number: int, partition: int) -> Capture:
    """One executable: nodes, edges, words, and where its memory comes from at launch."""
    nodes = variant.captured.recording.nodes
    names = [raw.name for raw in nodes]
    frames, modules = list(of_nodes(names, launcher.code.lines)), list(of_nodes(names, launcher.code.modules))
    sources, places = launcher.code.sources(), [place_behind(raw.origin) for raw in nodes]
    for index, place in enumerate(places):
        if place is not None:
            frames[index], modules[index] = place.frame, place.module
        elif frames[index] is None and (origin := nodes[index].origin) is not None:
            frames[index] = None if is_library(origin[0]) else frame_of_line(*origin)
    lanes = lanes_of([node.deps for node in nodes])
    allocations = tuple(allocations_of(launcher.code, variant, places, frames))
    words_of = [told(complete(*each), variant.called) for each in zip(nodes, variant.captured.words, strict=True)]
    return Capture(
        number,
        partition,
        tuple(
            Node(
                index,
                raw.kind,
                raw.name,
                raw.grid,
                raw.block,
                raw.shared_bytes,
                lanes[index],
                len(raw.parameters),
                words,
                frames[index],
                raw.lowered_from,
                modules[index] or module_by_parameters(words, allocations),
                place.source if (place := places[index]) is not None else sources.get(raw.name, "")[:MOST_SOURCE],
            )
            for index, (raw, words) in enumerate(zip(nodes, words_of, strict=True))
        ),
        tuple((before, index) for index, raw in enumerate(nodes) for before in raw.deps),
        allocations,
        variant.plan.workspace_bytes,
        variant.device_bytes,
        variant.patching,
    )


def captured_graph(graph: Any, number: int, partition: int) -> Capture:
    """A graph that somebody else captured: nodes and edges. Words take two captures, and memory is its pool's."""
    raw = driver().describe(graph)
    lanes = lanes_of([node.deps for node in raw], [node.kind is NodeKind.KERNEL for node in raw])
    nodes = tuple(
        Node(
            n,
            x.kind,
            x.name,
            x.grid,
            x.block,
            x.shared_bytes,
            lanes[n],
            len(x.parameters),
            frame=frame_at(graph, x.position),
        )
        for n, x in enumerate(raw)
    )
    return Capture(number, partition, nodes, tuple((before, n) for n, x in enumerate(raw) for before in x.deps), ())


def trace_of_graph(graph: Any, title: str = "captured by hand") -> Trace:
    """A ``CUDAGraph`` that somebody else captured, as a trace.

    Raises:
        UnsupportedError: nothing was captured into it, or it was not kept.
    """
    if not getattr(graph, "kept", True):  # a simulated one could be looked at all the same
        raise UnsupportedError("this graph cannot be looked at: make it with CUDAGraph(keep_graph=True)")
    capture = captured_graph(graph, 0, 0)
    partition = Partition(0, title, True, (), sum(node.kind is NodeKind.KERNEL for node in capture.nodes))
    return Trace(driver().source(), title, [partition], [capture])
