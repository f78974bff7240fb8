"""Records what the launcher does while a ``with`` block runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from paramgraph_kit.backend.between import Between
from paramgraph_kit.backend.by_hand import by_hand
from paramgraph_kit.backend.registry import CompiledGraph, compiled_graphs
from paramgraph_kit.backend.tracing import (
    capture_of,
    captured_graph,
    copied_each_launch,
    live_variants,
    partition_of,
    rest_of,
)
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.launch.launcher import Launcher, Variant
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.model import Failure, Frame, Launch, NodeKind, Origin, Partition, Trace

Explain = Callable[[BaseException], Failure]
UNKNOWN = "unknown"  # the code of a failure that no rule knows
MOST_KEPT = 256  # launches of one executable whose addresses are kept
MOST_TIMED = 4096  # launches of one watch that are timed on the device: two of its events each

_lock = threading.RLock()
_active: list[_Watch] = []
_hands = ExitStack()  # what sees the user's own captures, while anybody watches


class _Watch:
    """One ``with`` block and the numbers that its trace gives to what it sees."""

    def __init__(self, trace: Trace, explain: Explain) -> None:
        self.trace = trace
        self.explain = explain
        self.began = time.perf_counter()
        self.before = {graph.order: _ungraphed(graph) for graph in compiled_graphs()}
        self.partitions: dict[int, int] = {}  # id of a launcher -> number of its partition
        self.captures: dict[int, tuple[int, int]] = {}  # id of a variant -> number of its capture, launches seen
        self.rests: set[int] = set()  # orders of graphs whose rest is in the trace
        self.by_hand: dict[int, tuple[int, int]] = {}  # id of a user's graph -> number of its capture, replays seen
        self.kept: list[Any] = []  # what has an id above must not die before the end
        self.between = Between()
        self.timed: list[tuple[int, Any, Any]] = []  # the place of a launch, the moments before and after it
        self.aside = 0  # how many of our own verbs are trying something

    def partition(self, launcher: Launcher) -> int:
        """The number of a partition, which is new to the trace at its first event."""
        if id(launcher) not in self.partitions:
            graph = _graph_of(launcher)
            number = len(self.trace.partitions)
            self.trace.partitions.append(partition_of(graph, launcher, number))
            self.partitions[id(launcher)] = number
            self.kept += [launcher, graph]
            if all(id(each) in self.partitions for each in graph.launchers):
                self.rest(graph)
        return self.partitions[id(launcher)]

    def rest(self, graph: CompiledGraph) -> None:
        """What a graph that was compiled while we watch runs outside of its partitions."""
        if graph.order in self.before or graph.order in self.rests:
            return
        if rest := rest_of(graph, len(self.trace.partitions)):
            self.trace.partitions.extend(rest)
            self.rests.add(graph.order)

    def update(self, launcher: Launcher) -> None:
        """Whether a partition is graphed, or why not, may have changed."""
        number = self.partition(launcher)
        self.trace.partitions[number] = partition_of(_graph_of(launcher), launcher, number)

    def capture(self, launcher: Launcher, variant: Variant) -> int:
        """The number of an executable, which is new to the trace at its first event."""
        if id(variant) not in self.captures:
            number = len(self.trace.captures)
            self.trace.captures.append(capture_of(launcher, variant, number, self.partition(launcher)))
            self.captures[id(variant)] = (number, 0)
            self.kept.append(variant)
        return self.captures[id(variant)][0]

    def launch(
        self, launcher: Launcher, variant: Variant, stage: int, old: tuple[int, ...], new: tuple[int, ...], copied: int
    ) -> int:
        """The place of a launch that is about to happen, after ``copied`` bytes of inputs were copied."""
        if driver().hear is not None:
            self.between.launched(sys._getframe(1))
        number = self.capture(launcher, variant)
        call = self.captures[id(variant)][1]
        if not call:  # when it was made, its partition did not have it yet
            self.update(launcher)
        self.captures[id(variant)] = (number, call + 1)
        moved = sum(a != b for a, b in zip(old, new, strict=True)) if old else len(new)
        # A patch writes every bound word, whichever slot moved.
        words = len(variant.plan.stages[stage].bindings) if old != new else 0
        elsewhere = self.addresses(variant, stage, new) if old != new and call < MOST_KEPT else ()
        moment = self.trace.pool_events[-1].time if self.trace.pool_events else None
        self.trace.launches.append(
            Launch(number, call, moved, words, copied, start_us=self.now(), addresses=elsewhere, event=moment)
        )
        return len(self.trace.launches) - 1

    def read_times(self) -> None:
        """Add to each launch when it ran on the device, which waits for the last of them: nothing is read before."""
        target, launches = driver(), self.trace.launches
        if not self.timed or target.is_capturing():
            return
        base = self.timed[0][1]
        try:
            for place, first, last in self.timed:
                took, start = target.elapsed_us(first, last), target.elapsed_us(base, first)
                launches[place] = replace(launches[place], gpu_start_us=round(start, 1), gpu_us=round(took, 1))
        except RuntimeError:  # the device is in trouble, which somebody else tells
            pass

    def captured_by_hand(self, graph: Any, nodes: int | None) -> None:
        """A graph of the user's own; where it was not kept, only how many nodes it has, if that is known."""
        number, title = len(self.trace.captures), f"captured by hand {len(self.by_hand) + 1}"
        partition = len(self.trace.partitions)
        self.by_hand[id(graph)] = (-1, 0)
        try:
            capture = captured_graph(graph, number, partition)
        except UnsupportedError:
            if nodes is not None:
                self.trace.partitions.append(Partition(partition, title, True, (), nodes))
            return
        kernels = sum(node.kind is NodeKind.KERNEL for node in capture.nodes)
        self.trace.partitions.append(Partition(partition, title, True, (), kernels))
        self.trace.captures.append(capture)
        self.by_hand[id(graph)] = (number, 0)

    def replayed(self, graph: Any) -> None:
        """A replay of a graph of the user's, where it was captured; it may be older than the watch."""
        if id(graph) not in self.by_hand and getattr(graph, "kept", True):
            self.captured_by_hand(graph, None)
        number, call = self.by_hand.get(id(graph), (-1, 0))
        if number >= 0:
            self.by_hand[id(graph)] = (number, call + 1)
            self.trace.launches.append(Launch(number, call, 0, 0, 0, start_us=self.now()))

    def failed(self, failure: Failure) -> None:
        """One failure is told once, however often it is seen."""
        if all((failure.code, failure.frame) != (known.code, known.frame) for known in self.trace.failures):
            self.trace.failures.append(failure)

    def doubted(self, text: str, line: tuple[str, int] | None) -> None:
        """The simulated device does not know what a GPU does at a line."""
        if not self.aside:
            failure = self.explain(NotImplementedError(text))
            self.failed(replace(failure, frame=Frame(*line) if line is not None else None))

    def now(self) -> float | None:
        """Microseconds since the watch began; None where the device is simulated, and so is its time."""
        if self.trace.source.origin is not Origin.LIVE:
            return None
        return round((time.perf_counter() - self.began) * 1e6, 1)

    def addresses(self, variant: Variant, stage: int, new: tuple[int, ...]) -> tuple[int, ...]:
        """The addresses of a stage's slots, at the numbers that the whole plan gives them."""
        by_slot = dict(zip(variant.plan.stages[stage].slots, new, strict=True))
        return tuple(by_slot.get(slot, 0) for slot in variant.plan.slots)

    def heard(self, operation: str) -> None:
        """An operation has launched something by itself."""
        if not self.aside:
            self.between.tell(operation, sys._getframe(1))

    def finish(self) -> None:
        """Bring the partitions up to date, and add those that ran without a graph."""
        for launcher in [kept for kept in self.kept if isinstance(kept, Launcher)]:
            self.update(launcher)
        for graph in compiled_graphs():
            calls, old = _ungraphed(graph), self.before.get(graph.order, {})
            for launcher in graph.launchers:
                if id(launcher) not in self.partitions and calls[launcher.name] != old.get(launcher.name, 0):
                    self.partition(launcher)
            self.rest(graph)
        seen = [graph for graph in self.kept if isinstance(graph, CompiledGraph)]
        self.trace.partitions.extend(self.between.partitions(seen, len(self.trace.partitions)))
        self.kept.clear()


def _looking() -> list[_Watch]:
    """The watches that what happens now is for."""
    return [watch for watch in _active if not watch.aside]


@contextmanager
def aside() -> Iterator[None]:
    """What is captured and launched in this block is tried by us: whoever watches is told of none of it."""
    with _lock:
        away, known = list(_active), {graph.order for graph in compiled_graphs()}
        for watch in away:
            watch.aside += 1
    try:
        yield
    finally:
        with _lock:
            made = {graph.order: _ungraphed(graph) for graph in compiled_graphs() if graph.order not in known}
            for watch in away:
                watch.aside -= 1
                watch.before |= made


def _ungraphed(graph: CompiledGraph) -> dict[str, int]:
    return {launcher.name: launcher.ungraphed_calls for launcher in graph.launchers}


def _graph_of(launcher: Launcher) -> CompiledGraph:
    for graph in compiled_graphs():
        if any(each is launcher for each in graph.launchers):
            return graph
    raise LookupError(f"{launcher.name} belongs to no compiled graph")  # its graph outlives it


def _attach(launcher: Launcher, variant: Variant) -> None:
    copied = copied_each_launch(launcher, variant)

    target = driver()

    def tell(stage: int, old: tuple[int, ...], new: tuple[int, ...]) -> Callable[[], None] | None:
        with _lock:
            places = [(w, w.launch(launcher, variant, stage, old, new, 0 if stage else copied)) for w in _looking()]
        timing = [(watch, place) for watch, place in places if len(watch.timed) < MOST_TIMED]
        first = target.mark() if timing else None
        if first is None:
            return None

        def done() -> None:
            last = target.mark()
            for watch, place in timing:
                watch.timed.append((place, first, last))

        return done

    variant.state.watch = tell


def _made(launcher: Launcher, variant: Variant | None) -> None:
    """A variant was made while somebody watches, or there will be none."""
    with _lock:
        if variant is not None:
            for watch in _looking():
                watch.capture(launcher, variant)
            _attach(launcher, variant)
        elif any(each is launcher for graph in compiled_graphs() for each in graph.launchers):  # not while it is made
            for watch in _looking():
                watch.update(launcher)


def note_failure(failure: Failure) -> None:
    """A capture of the user's has failed, or would, while somebody watches, whatever becomes of its exception."""
    with _lock:
        for watch in _active:
            watch.failed(failure)


def _captured(graph: Any, nodes: int) -> None:
    with _lock:
        for watch in _looking():
            watch.captured_by_hand(graph, nodes)


def _failed(error: BaseException) -> None:
    with _lock:
        for watch in _looking():
            failure = watch.explain(error)
            if failure.code != UNKNOWN:  # an exception in a capture that is not of the capture's making
                watch.failed(failure)


def _replayed(graph: Any) -> None:
    with _lock:
        for watch in _looking():
            watch.replayed(graph)


def _variants() -> Iterator[tuple[Launcher, Variant]]:
    for graph in compiled_graphs():
        for launcher in graph.launchers:
            for variant in live_variants(launcher):
                yield launcher, variant


@contextmanager
def watching(title: str, explain: Explain) -> Iterator[Trace]:
    """See ``paramgraph_kit.watch``; ``explain`` makes a failure of an exception that leaves the block."""
    trace = Trace(driver().source(), title)
    with _lock:
        watch = _Watch(trace, explain)
        _active.append(watch)
        if len(_active) == 1:
            _hands.enter_context(by_hand(_captured, _failed, _replayed))
            launching.observers.append(_made)
            for launcher, variant in _variants():
                _attach(launcher, variant)
    hear, doubt = driver().hear, driver().doubt
    try:
        with (
            hear(watch.heard) if hear is not None else nullcontext(),
            doubt(watch.doubted) if doubt is not None else nullcontext(),
        ):
            yield trace
    except Exception as error:
        watch.failed(explain(error))  # a capture that failed has been noted when it did
        raise
    finally:
        with _lock:
            _active.remove(watch)
            if not _active:
                _hands.close()
                launching.observers.remove(_made)
                for _, variant in _variants():
                    variant.state.watch = None
            watch.finish()
        watch.read_times()
