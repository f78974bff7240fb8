"""One partition's life: the first call runs ungraphed and captures, later calls patch and replay.

Whatever the launcher is not sure of keeps running ungraphed, and the reason is kept for the report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from paramgraph_kit.capture.pair import (
    ALIGNMENT,
    Captured,
    InputSpec,
    alignment_of,
    capture_pair,
    check_alike,
    describe,
    launched_by,
)
from paramgraph_kit.driver.api import Driver, Executable
from paramgraph_kit.driver.borrowed import replaced
from paramgraph_kit.driver.collection import no_collection
from paramgraph_kit.driver.lines import line_behind
from paramgraph_kit.driver.native.tensors import aligned_addresses
from paramgraph_kit.driver.progress import now, telling
from paramgraph_kit.driver.tensors import PLAIN, bits_of, not_carried
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.dying import dies_here
from paramgraph_kit.launch.generate import Form, State, launch_function
from paramgraph_kit.launch.plan import Plan, make_plan
from paramgraph_kit.launch.probation import Probation
from paramgraph_kit.launch.room import share_room
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

MAX_VARIANTS = 16  # executables of one partition: one for each set of scalars and alignments that it is called with
MAX_SCALARS = 4  # of these, how many may differ in nothing but numbers: a number that changes has no end of values
BY_CHOICE = ("not-selected", "slower-as-graph")  # reasons that were asked for: no error where options are strict
UNDER_WAY = "capture-under-way"  # the reason of a driver that cannot record now but may later


@dataclass(frozen=True, slots=True)
class Called:
    """What the user calls the memory of one executable, where its code does not tell it; "" where nobody knows."""

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    held: tuple[tuple[int, int, str], ...]  # what it addresses where it lies: first byte, size, and whose it is


@dataclass(slots=True, weakref_slot=True)
class Variant:
    """What one set of scalars and alignments is launched with."""

    captured: Captured
    plan: Plan
    executables: tuple[Executable, ...]  # one for each stage
    state: State
    launch: Callable[[list[Any]], Any]
    probation: Probation  # what it has to show first, and has shown
    prepared_s: float  # seconds to find and plan its words and to instantiate its graphs; capturing is not in it
    called: Called | None = None

    @property
    def patching(self) -> str:
        """Who rewrites its words: "device", "host" or "simulated"."""
        return self.executables[0].patching

    @property
    def device_bytes(self) -> int:
        """Device memory that its graphs hold."""
        return sum(executable.device_bytes for executable in self.executables)


capturing = threading.Lock()  # one capture at a time: all of a process's captures use the same phantom memory

_capturer: list[int] = []  # the thread whose turn it is: code may call a partition of its own
PATIENCE_S = 60.0  # for the capture of another thread: longer than any, so that what waits in a circle goes on

_pausing: list[object] = []  # who is: also for autograd's threads, which run backward passes


@contextmanager
def pausing(launchers: Sequence[Launcher]) -> Iterator[None]:
    """These, and those that are made meanwhile, run ungraphed: what calls them is captured whole."""
    before = [(launcher, launcher.current) for launcher in launchers]
    me = object()
    _pausing.append(me)
    for launcher in launchers:
        launcher.pause()
    try:
        yield
    finally:
        _pausing.remove(me)
        for launcher, current in before:
            launcher.current = current


# Told (launcher, variant) of every variant that is made, and (launcher, None) of every reason against one.
observers: list[Callable[[Any, Any], None]] = []


@dataclass(slots=True)
class Options:
    """How partitions are launched: the ``options`` of ``torch.compile(..., backend="paramgraph")``."""

    patching: str = "auto"  # who rewrites addresses: "device", "host", or whichever works
    # In how many stages a partition may be launched to hold about as much memory as without graphs; 1: always in one.
    stages: int = 8
    # Which partitions become graphs: "always" all that can, "never" none (for comparison), "measure" those that are
    # quicker so: their first calls are timed both ways.
    select: str = "always"
    # Which launches are compared with the ungraphed code: "off" none, "first" each graph's first, "always" all.
    verify: str = "off"
    # Whether what no graph may take is an error instead of running ungraphed.
    strict: bool = False


@dataclass(slots=True)
class Calls:
    """What a launcher counts of calls without a graph; a value of its own, so that totals outlive the launcher."""

    ungraphed: int = 0


@dataclass(slots=True, weakref_slot=True)
class Launcher:
    """Callable in the place of a compiled partition: ``launcher(inputs)`` empties the list and returns outputs."""

    driver: Driver
    code: PartitionCode
    options: Options = field(default_factory=Options)
    variants: dict[tuple[Any, ...], Variant | None] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    paused: bool = False
    current: Callable[[list[Any]], Any] = field(init=False)
    differs: str = ""  # of a step: what the last capture was made anew for
    aligned: int = ALIGNMENT  # as far as keys tell alignments apart: as its kernels do, once they are known
    # Sets of numbers that were captured with, by layout of the tensors.
    _scalars: dict[tuple[InputSpec | None, ...], list[tuple[Any, ...]]] = field(default_factory=dict)
    # The first key's parts, and the positions of plain tensors, of which only the alignment is asked again, and others.
    _usual: tuple[list[Any], list[int], list[int]] | None = None
    _widened: bool = False  # kernels that are chosen by more came later

    def __post_init__(self) -> None:
        self.current = self._select
        if self.options.select == "never":
            self.reasons.append(Reason("not-selected", "select='never' was asked for"))
            self.current = self._ungraphed
        elif self.code.refused is not None:
            self.reasons.append(self.code.refused)

    @property
    def name(self) -> str:
        """Of the partition: "forward 0 partition 1"."""
        return self.code.name

    @property
    def ungraphed_calls(self) -> int:
        """Calls that ran without a graph, the capturing ones included."""
        return self.calls.ungraphed

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the partition, from a graph where there is one."""
        return self.current(inputs)

    def settled(self, inputs: Sequence[Any] | None = None) -> Variant | None:
        """What launches calls with these inputs, or the last call; None where that is no graph or has to show more."""
        if inputs is not None:
            variant = self.variants.get(self._key(inputs))
        else:
            variant = next((v for v in self.variants.values() if v is not None and v.launch is self.current), None)
        ready = variant is not None and variant.probation.over and not self.paused
        # Calls of other makers may give these on the host; after the forward's launch they are on the device.
        ready = ready and (inputs is None or not self.code.host_seeds)
        return variant if ready and self.options.select != "never" else None

    def launch_as(self, form: Form, variant: Variant, missed: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """The launch of a variant called in another form; ``missed(inputs)`` takes calls that it was not made for."""
        return launch_function(
            self.driver,
            variant.captured,
            variant.plan,
            variant.executables,
            variant.state,
            missed,
            missed,
            self.code,
            replace(form, capturing=lambda: self.paused or self.driver.is_capturing()),
        )

    @property
    def warm(self) -> bool:
        """Whether a call has shown what becomes of this partition."""
        return bool(self.variants)

    @contextmanager
    def heard(self, tell: Callable[[list[Any], Any], None]) -> Iterator[None]:
        """Tell of each call while the block runs: ``tell(inputs, outputs)``."""
        before = self.current

        def hear(inputs: list[Any]) -> Any:
            given = list(inputs)
            outputs = before(inputs)
            tell(given, outputs)
            return outputs

        self.current = hear
        try:
            yield
        finally:
            if self.current is hear:
                self.current = before

    def __repr__(self) -> str:
        return f"Launcher({self.name}, {sum(v is not None for v in self.variants.values())} executables)"

    def _select(self, inputs: list[Any]) -> Any:
        """Find the executable for these inputs, or make it after running this call ungraphed."""
        # In somebody else's capture: be part of it, and map no memory meanwhile. Tangents are lost in a launch.
        if self.driver.is_capturing() or _pausing or forward_ad._current_level >= 0:
            return self._ungraphed(inputs)
        if self.code.refused is not None:
            self._raise_if_strict()
            return self._ungraphed(inputs)
        if any(inputs[k].device != self.driver.device for k in self.code.host_seeds):  # what gave them was ungraphed
            return self._ungraphed(inputs)
        key = self._key(inputs)
        known = self.variants.get(key)
        if (known is None or not known.probation.over) and (other := replaced()) is not None:
            self._refuse(other)
            return self._ungraphed(inputs)
        if known is not None:
            if not known.probation.over:
                return self._on_probation(known, inputs, key)
            self.current = known.launch
            return known.launch(inputs)
        if key in self.variants:
            self._raise_if_strict()
            return self._ungraphed(inputs)
        if len(self.variants) >= MAX_VARIANTS:
            text = f"called with more than {MAX_VARIANTS} sets of scalars or alignments"
            self._refuse(Reason("too-many-variants", text))
            return self._ungraphed(inputs)
        # Another thread captures: this partition's turn comes later. Code that has never run waits, though: it may be
        # tuned in its first run, and what waits for the whole device then fails there, and breaks that capture [H200].
        fresh = self.calls.ungraphed == 0 and _capturer != [threading.get_ident()]
        if not (capturing.acquire(timeout=PATIENCE_S) if fresh else capturing.acquire(blocking=False)):
            return self._ungraphed(inputs)
        _capturer.append(threading.get_ident())
        try:
            if key not in self.variants:
                return self._first_call(inputs, key)
        finally:
            _capturer.clear()
            capturing.release()
        return self._select(inputs)  # another thread has captured it meanwhile

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if self._usual is not None:  # a partition may take hundreds of tensors, and be asked at each call
            usual, aligned, others = self._usual
            if aligned_addresses([inputs[k] for k in aligned], self.aligned - 1) is not None:
                found = usual.copy()
                for k in others:
                    found[k] = self._key_of(inputs[k])
                return (self.driver.library_state(), *found)
        found = [self._key_of(x) for x in inputs]
        if self._usual is None and not self.code.layouts:
            # What a launch asks no more about either: whoever guards the partition's arguments has.
            plainly = (self.aligned, *PLAIN)  # a tensor with nothing special
            plain = [k for k, key in enumerate(found) if key == plainly and not inputs[k].is_complex()]
            aligned = [k for k in plain if k not in self.code.unguarded]
            self._usual = found, aligned, sorted(set(range(len(found))) - set(aligned))
        return (self.driver.library_state(), *found)

    def _key_of(self, x: Any) -> Any:
        return self._tensor_key(x) if isinstance(x, torch.Tensor) else _scalar_key(x)

    def _tensor_key(self, x: torch.Tensor) -> Any:
        kind = not_carried(x)
        if x.device != self.driver.device or kind is not None:
            return str(x.device), kind
        alignment = min(alignment_of(self.driver.address_of(x)), self.aligned)
        return (alignment, *bits_of(x), x.shape, x.stride()) if self.code.layouts else (alignment, *bits_of(x))

    def _first_call(self, inputs: list[Any], key: tuple[Any, ...]) -> Any:
        try:
            specs = describe(self.driver, inputs)
        except RefusedError as refusal:
            self.variants[key] = None
            self._refuse(refusal.reason)
            return self._ungraphed(inputs)
        scalars = [x for x in inputs if not isinstance(x, torch.Tensor)]
        seen, numbers = self._scalars.setdefault(tuple(specs), []), tuple(_scalar_key(x) for x in scalars)
        if (endless := endless_of([*seen, numbers])) is not None:
            self._refuse(_changing_scalar(specs, endless))
            return self._ungraphed(inputs)
        dying = [k for k, spec in enumerate(specs) if spec is not None and dies_here(inputs, k)]
        before = self.driver.random_position()
        outputs = self._uncounted(inputs)  # warm-up, and this call's result
        increment = self.driver.random_position() - before
        self.calls.ungraphed += 1
        try:
            with no_collection(), telling(self.name):
                self._keep(key, self._capture(specs, scalars, increment, dying, outputs))
            self.share_room()
        except RefusedError as refusal:
            if refusal.reason.code == UNDER_WAY:  # the user's own capture: this call is in it, a later one is not
                return outputs
            self.variants[key] = None
            if self._recut(refusal, specs, scalars):
                return outputs
            self._refuse(refusal.reason)
        except Exception as error:  # whatever capture ran into, this call has its result: say why and go on
            self.variants[key] = None
            if self._recut(error, specs, scalars):
                return outputs
            text, frame = line_behind(error)
            self._refuse(Reason("capture-failed", text, frame))
        if numbers not in seen:  # the switches of libraries are in the key too, and may be what differs
            seen.append(numbers)
        return outputs

    def _keep(self, key: tuple[Any, ...], variant: Variant) -> None:
        """Find a new variant again by as much of its key as counts."""
        aligned = variant.captured.aligned
        if aligned > self.aligned:  # of no key so far is known what it asks for: all are captured anew
            self.aligned, self._usual, self._widened = aligned, None, True
            self.variants.clear()
            return
        if not self.variants and not self._widened:
            self.aligned, self._usual = aligned, None
            parts = [(min(part[0], aligned), *part[1:]) if type(part[0]) is int else part for part in key[1:]]
            key = (key[0], *parts)
        self.variants[key] = variant

    def share_room(self) -> None:
        """Let all variants, which take turns, take alike pieces of workspace."""
        share_room((v.plan, v.state) for v in self.variants.values() if v is not None)

    def _recut(self, error: BaseException, specs: list[InputSpec | None], scalars: list[Any]) -> bool:
        """Whether there is code that leaves out what a capture failed in, or refused: then that runs from now on."""
        if self.options.strict or any(variant is not None for variant in self.variants.values()):
            return False
        if isinstance(error, RefusedError) and error.position is not None:
            with suppress(Exception):  # whatever happens there: the reason is told as it is
                error.launched_by = launched_by(self.driver, self.code.run, specs, scalars, error.position)
        run = self.code.recut(error)
        if run is not None:
            self.current = run
        return run is not None

    def _capture(
        self,
        specs: list[InputSpec | None],
        scalars: list[Any],
        increment: int,
        dying: Sequence[int],
        outputs: Sequence[Any],
    ) -> Variant:
        started = time.perf_counter()
        captured = capture_pair(self.driver, self.code.run, specs, scalars, self.code.constants, increment)
        executables: list[Executable] = []
        try:
            check_alike(captured, outputs, self.driver.device)
            now("plans where memory lies and makes the graph")
            plan = make_plan(captured, dying, self.code.together, self.options.stages)
            make = partial(self.driver.instantiate, captured.recording, patching=self.options.patching)
            executables += [make(stage.nodes, stage.bindings, len(stage.slots)) for stage in plan.stages]
        except BaseException:
            for executable in executables:
                executable.destroy()
            self.driver.discard(captured.recording)
            raise
        captured.relax()
        state = State(threading.Lock(), plan)
        launch = launch_function(
            self.driver, captured, plan, executables, state, self._select, self._ungraphed, self.code
        )
        probation = Probation(
            self.driver,
            captured,
            launch,
            self._ungraphed,
            self._uncounted,
            verify=self.options.verify,
            measure=self.options.select == "measure",
        )
        prepared_s = time.perf_counter() - started - captured.capture_s
        variant = Variant(captured, plan, tuple(executables), state, launch, probation, prepared_s)
        for tell in observers:
            tell(self, variant)
        return variant

    def _on_probation(self, variant: Variant, inputs: list[Any], key: tuple[Any, ...]) -> Any:
        outputs = variant.probation(inputs)
        if (failed := variant.probation.failed) is not None:
            self.variants[key] = None  # freed when nobody refers to it: another thread may be launching it
            self._refuse(failed)
        return outputs

    def _ungraphed(self, inputs: list[Any]) -> Any:
        self.calls.ungraphed += 1
        return self._uncounted(inputs)

    def _uncounted(self, inputs: list[Any]) -> Any:
        return self.code.run(self._as_ungraphed_code_wants(inputs))

    def _as_ungraphed_code_wants(self, inputs: list[Any]) -> list[Any]:
        for k in self.code.host_seeds:
            inputs[k] = inputs[k].cpu()
        return inputs

    def _refuse(self, reason: Reason) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
            for tell in observers:
                tell(self, None)
        self._raise_if_strict()

    def not_launched(self, reason: Reason) -> None:
        """Keep why a call that somebody else keeps from this launcher has no launch."""
        self._refuse(reason)

    def _raise_if_strict(self) -> None:
        bad = [reason for reason in self.reasons if reason.code not in BY_CHOICE] if self.options.strict else []
        if bad:
            raise RefusedError(bad[-1])

    def pause(self) -> None:
        """Run the same code ungraphed from now on, for comparison; executables are kept for ``resume``."""
        self.paused = True
        self.current = self._ungraphed

    def resume(self) -> None:
        """Launch from graphs again."""
        self.paused = False
        self.current = self._select

    def destroy(self) -> None:
        """Free every executable; later calls run ungraphed."""
        self.paused = True
        self.current = self._ungraphed
        for variant in self.variants.values():
            if variant is not None:
                with variant.state.lock:
                    for executable in variant.executables:
                        executable.destroy()
                self.driver.discard(variant.captured.recording)
        self.variants.clear()


def _scalar_key(x: Any) -> tuple[Any, ...]:
    """What tells numbers apart that compare equal (0.0 and -0.0, 1 and True) and finds a NaN again."""
    return "scalar", type(x), x.hex() if isinstance(x, float) else x


def endless_of(calls: Iterable[tuple[Hashable, ...]]) -> int | None:
    """Which of the numbers that calls gave has had more than ``MAX_SCALARS`` values.

    >>> endless_of((a, b) for a in range(4) for b in range(4)), endless_of((1, n) for n in range(5))
    (None, 1)
    """
    columns = enumerate(zip(*calls, strict=True))
    return next((n for n, values in columns if len(set(values)) > MAX_SCALARS), None)


def _changing_scalar(specs: Sequence[InputSpec | None], which: int) -> Reason:
    position = [k for k, spec in enumerate(specs) if spec is None][which]
    return Reason(
        "changing-scalar",
        f"input {position} is a number, which a graph has baked in, and it had more than {MAX_SCALARS} values: "
        "keep it in a tensor on the device",
    )
