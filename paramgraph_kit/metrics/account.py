"""Totals of what launchers count. They outlive launchers, so they never go down; nothing is done at a launch."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from paramgraph_kit.backend.registry import CompiledGraph, compiled_graphs
from paramgraph_kit.backend.tracing import copied_each_launch, live_variants
from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.launch.generate import State
from paramgraph_kit.launch.launcher import Calls, Launcher, Variant
from paramgraph_kit.metrics.table import FIRST_CALL
from paramgraph_kit.trace.reason import Reason

Labels = tuple[str, ...]
Totals = dict[str, defaultdict[Labels, float]]
Values = Mapping[str, Mapping[Labels, float]]  # by metric's name, by its labels' values


@dataclass(slots=True)
class _Launched:
    """One executable: what is known of it when it is made, and its counts, which do not keep it alive."""

    variant: weakref.ref[Variant]
    phase: str
    patching: str
    state: State
    words: tuple[int, ...]  # that one launch of each stage rewrites
    copied: int  # bytes in one call, all stages together

    def add_to(self, totals: Totals) -> None:
        stages = len(self.words)
        key = (self.phase, self.patching)
        totals["launches"][key] += self.state.launches
        totals["patched_launches"][key] += self.state.patches
        totals["words_patched"][self.phase,] += sum(
            n * words for n, words in zip(self.state.patched, self.words, strict=True)
        )
        totals["copied_bytes"][self.phase,] += self.copied * self.state.launches // stages


@dataclass(slots=True)
class _Called:
    """One launcher, or the part of a compiled graph that has none: its ungraphed calls and the reasons against it."""

    owner: weakref.ref[Launcher] | weakref.ref[CompiledGraph]
    phase: str
    calls: Calls
    reasons: list[Reason]
    seen_calls: int = 0
    seen_reasons: int = 0

    def add_to(self, totals: Totals) -> None:
        """Add what is new since the last time."""
        count, reasons = self.calls.ungraphed, self.reasons[:]
        for reason in reasons[self.seen_reasons :]:
            totals["refusals"][self.phase, reason.code] += 1
        why = reasons[-1].code if reasons else FIRST_CALL
        totals["ungraphed_calls"][self.phase, why] += count - self.seen_calls
        self.seen_calls, self.seen_reasons = count, len(reasons)


@dataclass(slots=True)
class Account:
    """Reads the counts of every launcher from the first on, until ``close``."""

    _lock: threading.RLock = field(default_factory=threading.RLock)
    _called: dict[int, _Called] = field(default_factory=dict)  # by the id of a living launcher or graph
    _launched: dict[int, _Launched] = field(default_factory=dict)  # by the id of a living variant
    _gone: Totals = field(default_factory=lambda: _empty())  # totals of those that are no more

    def __post_init__(self) -> None:
        launching.observers.append(self._made)

    def close(self) -> None:
        """Count no more."""
        if self._made in launching.observers:
            launching.observers.remove(self._made)

    def read(self) -> Values:
        """All totals now, and what is held now; may be called from any thread."""
        with self._lock:
            held = self._held()
            self._bury()
            for called in self._called.values():
                called.add_to(self._gone)  # in pieces: each under the reason of its time
            totals = {name: values.copy() for name, values in self._gone.items()}
            for launched in self._launched.values():
                launched.add_to(totals)
        return {name: {k: v for k, v in values.items() if v} for name, values in totals.items()} | held

    def _held(self) -> dict[str, dict[Labels, float]]:
        partitions: Counter[Labels] = Counter()
        executables: Counter[Labels] = Counter()
        nbytes: Counter[Labels] = Counter()
        workspace: dict[Labels, float] = {}
        for graph in compiled_graphs():
            self._adopt(id(graph), weakref.ref(graph), graph.name, Calls(), graph.reasons)
            for launcher in list(graph.launchers):
                self._adopt(id(launcher), weakref.ref(launcher), launcher.name, launcher.calls, launcher.reasons)
                variants = live_variants(launcher)
                partitions["graphed" if variants else "refused" if launcher.reasons else "waiting",] += 1
                phase = (_phase(launcher.name),)
                for variant in variants:
                    self._made(launcher, variant)
                    executables[phase] += 1
                    nbytes[phase] += variant.device_bytes
                    workspace[phase] = max(workspace.get(phase, 0), variant.plan.workspace_bytes)
        return {
            "partitions": dict(partitions),
            "executables": dict(executables),
            "executable_bytes": dict(nbytes),
            "workspace_bytes": workspace,
        }

    def _bury(self) -> None:
        """Keep the counts of what is no more, and nothing else of it."""
        for key, called in list(self._called.items()):
            if called.owner() is None:
                called.add_to(self._gone)
                del self._called[key]
        for key, launched in list(self._launched.items()):
            if launched.variant() is None:
                launched.add_to(self._gone)
                del self._launched[key]

    def _adopt(
        self,
        key: int,
        owner: weakref.ref[Launcher] | weakref.ref[CompiledGraph],
        name: str,
        calls: Calls,
        reasons: list[Reason],
    ) -> None:
        known = self._called.get(key)
        if known is not None and known.owner() is not owner():  # its id has been given to another
            known.add_to(self._gone)
            known = None
        if known is None:
            self._called[key] = _Called(owner, _phase(name), calls, reasons)

    def _made(self, launcher: Launcher, variant: Variant | None) -> None:
        """A variant is new, or a reason against a launcher."""
        with self._lock:
            self._adopt(id(launcher), weakref.ref(launcher), launcher.name, launcher.calls, launcher.reasons)
            if variant is None:
                return
            known = self._launched.get(id(variant))
            if known is not None and known.variant() is variant:
                return
            if known is not None:
                known.add_to(self._gone)
            phase = _phase(launcher.name)
            self._launched[id(variant)] = _Launched(
                weakref.ref(variant),
                phase,
                variant.patching,
                variant.state,
                tuple(len(stage.bindings) for stage in variant.plan.stages),
                copied_each_launch(launcher, variant),
            )
            self._gone["captures"][phase,] += 1
            self._gone["capture_seconds"][phase,] += variant.captured.capture_s + variant.prepared_s


def _empty() -> Totals:
    counters = ("launches", "patched_launches", "words_patched", "copied_bytes", "ungraphed_calls", "refusals")
    return {name: defaultdict(float) for name in (*counters, "captures", "capture_seconds")}


def _phase(name: str) -> str:
    """What a launcher is part of: "forward 0, 1" of a forward; a whole step's is called like its function, one word.

    >>> _phase("forward 0, 1"), _phase("train_step"), _phase("forward")
    ('forward', 'step', 'step')
    """
    first, space, _ = name.partition(" ")
    return first if space else "step"
