"""One partition's life: the first call runs ungraphed and captures, later calls patch and replay.

Whatever the launcher is not sure of keeps running ungraphed, and the reason is kept for the report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.capture.pair import Captured, alignment_of, capture_pair, describe
from paramgraph_kit.driver.api import Driver, Executable
from paramgraph_kit.launch.generate import State, launch_function
from paramgraph_kit.launch.plan import Plan, make_plan
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Frame, Reason

MAX_VARIANTS = 16  # executables of one partition: one for each set of scalars and alignments that it is called with


@dataclass(slots=True)
class Variant:
    """One executable and how it is launched."""

    captured: Captured
    plan: Plan
    executable: Executable
    state: State
    launch: Callable[[list[Any]], Any]


@dataclass(slots=True)
class Options:
    """How partitions are launched: the ``options`` of ``torch.compile(..., backend="paramgraph")``."""

    patching: str = "auto"  # who rewrites addresses: "device", "host", or whichever works
    select: str = "always"  # which partitions become graphs: "always" all that can, "never" none (for comparison)


@dataclass(slots=True)
class Launcher:
    """Callable in the place of a compiled partition: ``launcher(inputs)`` empties the list and returns outputs."""

    driver: Driver
    run: Callable[[list[Any]], Any]
    name: str
    constants: Sequence[torch.Tensor] = ()
    options: Options = field(default_factory=Options)
    explain: Callable[[BaseException], Frame | None] = lambda _: None
    variants: dict[tuple[Any, ...], Variant | None] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    ungraphed_calls: int = 0
    current: Callable[[list[Any]], Any] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.current = self._select
        if self.options.select == "never":
            self._refuse(Reason("not-selected", "select='never' was asked for"))
            self.current = self._ungraphed

    def __call__(self, inputs: list[Any]) -> Any:
        return self.current(inputs)

    def __repr__(self) -> str:
        return f"Launcher({self.name}, {sum(v is not None for v in self.variants.values())} executables)"

    def _select(self, inputs: list[Any]) -> Any:
        """Find the executable for these inputs, or make it after running this call ungraphed."""
        key = self._key(inputs)
        known = self.variants.get(key)
        if known is not None:
            self.current = known.launch
            return known.launch(inputs)
        # A capture under way on this stream is somebody else's: be part of it like any other work.
        if key in self.variants or len(self.variants) >= MAX_VARIANTS or not self._lock.acquire(blocking=False):
            if key not in self.variants and len(self.variants) >= MAX_VARIANTS:
                self._refuse(Reason("too-many-variants", f"called with more than {MAX_VARIANTS} sets of scalars or alignments"))
            return self._ungraphed(inputs)
        try:
            return self._first_call(inputs, key)
        finally:
            self._lock.release()

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        address_of = self.driver.address_of
        mine = self.driver.device
        return tuple(
            (alignment_of(address_of(x)) if x.device == mine else str(x.device)) if isinstance(x, torch.Tensor) else ("scalar", x)
            for x in inputs
        )

    def _first_call(self, inputs: list[Any], key: tuple[Any, ...]) -> Any:
        try:
            specs = describe(self.driver, inputs)
        except RefusedError as refusal:
            self.variants[key] = None
            self._refuse(refusal.reason)
            return self._ungraphed(inputs)
        scalars = [x for x in inputs if not isinstance(x, torch.Tensor)]
        before = self.driver.random_position()
        outputs = self.run(inputs)  # warm-up, and this call's result
        increment = self.driver.random_position() - before
        self.ungraphed_calls += 1
        self.variants[key] = None
        try:
            captured = capture_pair(self.driver, self.run, specs, scalars, self.constants, increment)
            plan = make_plan(captured)
            executable = self.driver.instantiate(captured.recording, plan.bindings, plan.slots, self.options.patching)
        except RefusedError as refusal:
            self._refuse(refusal.reason)
        except Exception as error:  # whatever capture ran into, this call has its result: say why and go on
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._refuse(Reason("capture-failed", text, self.explain(error)))
        else:
            state = State(threading.Lock())
            launch = launch_function(self.driver, captured, plan, executable, state, self._select)
            self.variants[key] = Variant(captured, plan, executable, state, launch)
            self.current = launch
        return outputs

    def _ungraphed(self, inputs: list[Any]) -> Any:
        self.ungraphed_calls += 1
        return self.run(inputs)

    def _refuse(self, reason: Reason) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def destroy(self) -> None:
        """Free every executable; later calls run ungraphed."""
        self.current = self.run
        for variant in self.variants.values():
            if variant is not None:
                variant.executable.destroy()
                self.driver.discard(variant.captured.recording)
        self.variants.clear()
