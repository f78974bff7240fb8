"""``pgk.parameterize(fn, state=...)``: a whole training step, run under capture and launched as one graph.

The first call is ungraphed: lazy optimizer state, compiling, tuning. The next is watched and captured, later ones are
launched. Whatever is not sure runs as it is, and the reason is in the report.
"""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.backend import new_number
from paramgraph_kit.backend.call_state import is_heard
from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.backend.registry import CompiledGraph, compiled_graphs
from paramgraph_kit.capture.pair import is_anchored
from paramgraph_kit.driver.borrowed import replaced
from paramgraph_kit.driver.collection import no_collection
from paramgraph_kit.driver.native.build import prepare
from paramgraph_kit.driver.progress import telling
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import MAX_SCALARS, Launcher, Options, capturing, endless_of, observers, pausing
from paramgraph_kit.step.arguments import ASKS, Arguments
from paramgraph_kit.step.capture import Recorded, record_step
from paramgraph_kit.step.graphed import MISFIT, Graphed
from paramgraph_kit.step.guard import Difference, Guard
from paramgraph_kit.step.kept import Kept
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.observe import Observation, busy, deferring, is_busy, observe
from paramgraph_kit.step.refusals import (
    changing,
    check_backward,
    check_left,
    check_observation,
    check_surroundings,
    failed,
    surroundings,
)
from paramgraph_kit.step.release import LEGACY, release, released, told
from paramgraph_kit.trace.errors import ParamgraphError, RefusedError, UnsupportedError
from paramgraph_kit.trace.model import Frame, Reason
from paramgraph_kit.trace.wording import kind_text

MAX_GRAPHS = 64  # of one step: batches come in so many shapes
MAX_FUTILE = 8  # captures in a row without a launch: no more until there is one
# What counts from where a storage begins, or copies all of it.
_COUNT_FROM_STORAGE = frozenset(("as_strided", "as_strided_", "as_strided_scatter", "select_scatter", "slice_scatter",
                                 "diagonal_scatter", "storage_offset", "untyped_storage", "set_"))  # fmt: skip
_OF_STORAGES = ("unstable-capture", "unexplained-word", "unknown-output")  # how that shows
MAX_STALE = 3  # captures that find a graph of an earlier call alive: what a place held is let go with the next call
MAX_LOOKS = 4  # at calls whose code reads what nobody knew of
UNDER_WAY = "capture-under-way"
ARGUMENTS = "its arguments have other shapes, types or numbers, or one of torch's switches is another"


class Step:
    """Callable in the place of a step, which is ``__wrapped__``; made by ``pgk.parameterize(fn, state=...)``."""

    _paramgraph_owner = True  # its graphs name it as their owner: how a report finds them

    def __init__(self, fn: Callable[..., Any], state: Sequence[Any], options: Options) -> None:
        self._fn, self._state, self._options = fn, tuple(state), options
        self._driver = driver()
        prepare()
        self._arguments = Arguments(self._driver)
        self._names = Names()
        self._graphs: dict[Any, list[Graphed]] = {}
        self._calls: dict[Any, int] = {}  # ungraphed ones, by key
        self._refused: dict[Any, Reason] = {}
        self._futile: Counter[Any] = Counter()  # captures since the last launch, by key
        self._kept: dict[Any, Kept] = {}
        self._warm = False
        self._looks = 0  # calls that were watched and not captured
        name = getattr(fn, "__name__", type(fn).__name__)
        launcher = Launcher(self._driver, PartitionCode(name, self._not_here), options)
        self._launcher = launcher
        self._compiled = CompiledGraph(f"step {new_number()}", owner=weakref.ref(self), strict=options.strict)
        self._compiled.launchers.append(launcher)
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        graphs = sum(map(len, self._graphs.values()))
        name = getattr(self._fn, "__name__", type(self._fn).__name__)
        return f"Step({name}, {graphs} {'graph' if graphs == 1 else 'graphs'})"

    def __reduce__(self) -> Any:
        return Step, (self._fn, self._state, self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step, from a graph where there is one."""
        if is_busy() or self._driver.is_capturing() or self._options.select == "never" or is_heard():
            return self._fn(*args, **kwargs)
        try:
            check_backward()
            key, tensors = self._arguments.of(args, kwargs)
        except RefusedError as refusal:
            self._note(refusal.reason)
            return self._plainly(args, kwargs)
        for graphed in self._graphs.get(key, ()):
            fits = graphed.knows(tensors) and graphed.fits()
            if fits and (not graphed.anchored or all(map(is_anchored, tensors))):
                result = self._launched(graphed, key, tensors, args, kwargs)
                if result is not MISFIT:
                    if self._futile.pop(key, 0) >= MAX_FUTILE:
                        self._resume(key)
                    return result
        return self._ungraphed(key, tensors, args, kwargs)

    def _launched(self, graphed: Graphed, key: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        verify = self._options.verify
        if verify == "off" or (verify == "first" and graphed.checked.over):
            return graphed.launch(tensors)
        if (other := replaced()) is not None:
            self._note(other)
            return self._plainly(args, kwargs)
        scheduled = [("", scheduler) for scheduler, _, _ in graphed.deferred]

        @contextmanager
        def quiet() -> Iterator[None]:
            with self._inside(), deferring(scheduled, run=False):
                yield

        result = graphed.compared(tensors, lambda: self._fn(*args, **kwargs), quiet)
        if (reason := graphed.checked.failed) is not None:
            self._drop(key, graphed)
            self._refuse(key, reason)
        return result

    def _ungraphed(self, key: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """Run this call as it is, watched where a graph may come of it."""
        if not self._warm:
            self._warm = True
            self._calls[key] = 1
            return released(self._plainly(args, kwargs))
        if key in self._refused:
            self._raise_if_strict(self._refused[key])
            return self._plainly(args, kwargs)
        if (other := replaced()) is not None:
            self._note(other)
            return self._plainly(args, kwargs)
        if not capturing.acquire(blocking=False):  # another thread captures: this step's turn comes later
            return self._plainly(args, kwargs)
        try:
            return self._watched(key, tensors, args, kwargs)
        finally:
            capturing.release()

    def _watched(self, key: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        self._calls[key] = self._calls.get(key, 0) + 1
        self._launcher.calls.ungraphed += 1
        for old in self._graphs.get(key, []).copy():
            if old.moved():  # replaced by what is captured now
                self._drop(key, old)
        try:
            check_surroundings(self._driver, tensors)
            self._check_number(key)
        except RefusedError as refusal:
            self._refuse(key, refusal.reason)
            return self._fn(*args, **kwargs)
        before = surroundings(tensors)
        with self._inside():
            seen = observe(
                self._driver,
                lambda: self._fn(*args, **kwargs),
                self._roots(),
                self._given(args, kwargs),
                self._names,
            )
        release(seen)
        if not self._arguments.asked and not ASKS.isdisjoint(self._names.own):
            self._arguments.asked = True  # the next call has another key
            return seen.result
        if "_version" in self._names.own:
            text = "it asks how often a tensor was written (._version), which a launch does not count"
            self._refuse(key, Reason("unknown-state", text))
            return seen.result
        if seen.unforeseen and self._looks < MAX_LOOKS:  # known at the next call
            self._looks += 1
            return seen.result
        why: Reason | None = None
        try:
            check_left(before, tensors)
            if self._stale(key, tensors, args, kwargs, seen):
                gc.collect()  # what only a circle holds is no reason
                self._futile[key] -= 1
                with self._inside(), no_collection(), telling(self._launcher.name):
                    self._capture(key, tensors, args, kwargs, seen)
        except RefusedError as refusal:
            if not self._passing(key, seen, refusal.reason):
                why = refusal.reason
        except Exception as error:  # whatever capture ran into, this call has its result: say why and go on
            why = failed(error)
        if why is not None:  # once the error holds nothing of the capture any more
            self._refuse(key, told(why, self._driver.device) if why.code == LEGACY else why)
        return seen.result

    def _stale(self, key: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any, seen: Observation) -> bool:
        """Capture, or say that an autograd graph of before is in the way; the error and what it holds are gone then."""
        try:
            with self._inside(), no_collection(), telling(self._launcher.name):
                self._capture(key, tensors, args, kwargs, seen)
        except RefusedError as refusal:
            if refusal.reason.code != LEGACY:
                raise
            return True
        return False

    def _passing(self, key: Any, seen: Observation, reason: Reason) -> bool:
        """Whether a refusal says nothing of later calls."""
        if reason.code == LEGACY and self._futile[key] < MAX_STALE:
            return True
        if reason.code != "side-effect":
            return reason.code == UNDER_WAY
        if any(change.holder.kind == "cached" for change in seen.changes) and self._calls[key] < MAX_FUTILE:
            return True  # a cached function has computed something, which the next call finds
        # A first call may make things that stay; ``model.train()`` in the step changes something after an evaluation.
        return self._calls[key] == 1 or any(graphed.fits() for graphed in self._graphs.get(key, ()))

    def _capture(self, key: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any, seen: Observation) -> None:
        check_observation(seen)
        rebuild = self._arguments.rebuilt(args, kwargs)
        own = seen.near & seen.before.reach.own_tensors

        def call(arguments: Sequence[torch.Tensor]) -> Any:
            # One that is state as well stays itself: code can tell that, and such a graph takes no other.
            given = [x if id(x) in own else each for x, each in zip(tensors, arguments, strict=True)]
            again, named = rebuild(given)
            return self._fn(*again, **named)

        for graph in compiled_graphs():
            known = [*graph.constants, *(x for launcher in graph.launchers for x in launcher.code.constants)]
            seen.names.constants |= {id(x): x for x in known}
        self._futile[key] += 1
        lazily = self._calls[key] == 1
        try:
            recorded = record_step(self._driver, call, tensors, seen, lazily=lazily)
        except RefusedError as refusal:
            if refusal.reason.code not in _OF_STORAGES or seen.names.known.isdisjoint(_COUNT_FROM_STORAGE):
                raise
            if not all(map(is_anchored, tensors)):
                text = "the step may count from where an argument's storage begins: give no slices of larger tensors"
                raise RefusedError(replace(refusal.reason, message=f"{refusal.reason.message} ({text})")) from refusal
            recorded = record_step(self._driver, call, tensors, seen, lazily=lazily, anchored=True)
        cells = {(id(cell.holder.target), cell.key) for cell in recorded.cells}
        guard = Guard(seen, cells, recorded.used)
        graphed = Graphed(
            self._driver,
            recorded,
            guard,
            tensors,
            seen.written,
            self._kept_for(recorded),
            self._launcher.code,
            self._options,
        )
        self._graphs.setdefault(key, []).insert(0, graphed)
        self._launcher.variants[id(graphed),] = graphed.variant
        self._launcher.share_room()
        for tell in observers:
            tell(self._launcher, graphed.variant)

    def _kept_for(self, recorded: Recorded) -> Kept:
        """The gradients that this graph leaves on memory that is used again, with all others that leave the same."""
        captured, numbers = recorded.captured, set(recorded.kept)
        parameters = [id(c.holder.target) for c in recorded.cells if c.exits and c.exits[0] in numbers]
        specs = [spec for spec in captured.specs[len(captured.specs) - len(numbers) :] if spec is not None]
        layouts = [(spec.size, spec.stride, spec.dtype) for spec in specs]
        kept = self._kept.setdefault((*parameters, *layouts), Kept(self._driver, specs))
        kept.grow(specs)
        return kept

    def _roots(self) -> list[tuple[str, Any]]:
        return [("", self._fn), *((f"state[{n}]", x) for n, x in enumerate(self._state))]

    def _given(self, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
        """Arguments with the names that the step gives them."""
        try:
            return list(inspect.signature(self._fn).bind(*args, **kwargs).arguments.items())
        except (TypeError, ValueError):
            return [*((f"argument {n}", x) for n, x in enumerate(args)), *kwargs.items()]

    @contextmanager
    def _inside(self) -> Iterator[None]:
        inner = [launcher for graph in compiled_graphs() for launcher in graph.launchers]
        with busy(), pausing(inner):
            yield

    def _plainly(self, args: Any, kwargs: Any) -> Any:
        self._launcher.calls.ungraphed += 1
        with self._inside() if not self._graphs and not self._refused else nullcontext():
            return self._fn(*args, **kwargs)

    def _not_here(self, _: list[Any]) -> Any:
        raise UnsupportedError("a step is called, not its launcher")

    def _check_number(self, key: Any) -> None:
        """Numbers have no end of values: refuse one that has had too many."""
        if endless_of(known[1] for known in self._calls if known[0] == key[0]) is not None:
            raise RefusedError(changing("an argument is a number"))
        differing = [graphed.difference() for graphed in self._graphs.get(key, ())]
        newly = _newly(differing) if key in self._graphs else ARGUMENTS if self._graphs else ""
        self._launcher.differs = newly or self._launcher.differs
        if self._futile[key] >= MAX_FUTILE:
            text = f"captured {MAX_FUTILE} times and launched none of them: {newly} at each call; keep what"
            text += " changes in tensors on the device, or set it before the first call"
            raise RefusedError(Reason("too-many-variants", text, self._line_of(differing)))
        # Graphs that differ in something else as well may have the same number.
        held = {(found.place, repr(found.held)) for found in filter(None, differing) if found.is_number}
        numbers = Counter(place for place, _ in held)
        if numbers and numbers[place := max(numbers, key=numbers.__getitem__)] >= MAX_SCALARS:
            frame = self._line_of([found for found in filter(None, differing) if found.place == place])
            raise RefusedError(changing(f"{place} is a number", frame))
        if sum(map(len, self._graphs.values())) >= MAX_GRAPHS:
            text = f"called in more than {MAX_GRAPHS} ways: pad what it is given to fewer shapes"
            raise RefusedError(Reason("too-many-variants", text))

    def _line_of(self, differing: Sequence[Difference | None]) -> Frame | None:
        """Where the step's code names the first place that holds something else."""
        return next(
            (self._names.line_of(found.key) for found in differing if found and isinstance(found.key, str)), None
        )

    def _drop(self, key: Any, graphed: Graphed) -> None:
        self._graphs[key].remove(graphed)
        self._launcher.variants.pop((id(graphed),), None)
        self._launcher.share_room()
        graphed.destroy()

    def _refuse(self, key: Any, reason: Reason) -> None:
        self._refused[key] = reason
        self._note(reason)

    def _resume(self, key: Any) -> None:
        """One of the graphs fits after all, as where many states take turns: capture on."""
        reason = self._refused.get(key)
        if reason is not None and reason.code == "too-many-variants":
            del self._refused[key]
            if reason not in self._refused.values():
                self._launcher.reasons.remove(reason)

    def _note(self, reason: Reason) -> None:
        if reason not in self._launcher.reasons:
            self._launcher.reasons.append(reason)
            for tell in observers:
                tell(self._launcher, None)
        self._raise_if_strict(reason)

    def _raise_if_strict(self, reason: Reason) -> None:
        if self._options.strict:
            raise RefusedError(reason)


def _newly(differing: Sequence[Difference | None]) -> str:
    """What the graphs that there are do not fit for."""
    return next((f"{found.place} holds something else" for found in differing if found), "its state lies elsewhere")


def make_step(fn: Any, examples: Sequence[Any], state: Any, options: Options) -> Step:
    """See ``paramgraph_kit.parameterize``."""
    if isinstance(fn, Step):
        raise ParamgraphError("parameterize was given what parameterize returned: pass the step itself")
    if examples:  # a step is not traced: running it now would change its state
        raise ParamgraphError("parameterize(step, state=...) takes no example inputs: its first calls are real ones")
    if isinstance(state, PLAIN):
        raise ParamgraphError(f"state is what the step changes (the model, the optimizer), not {kind_text(state)}")
    return Step(fn, state if isinstance(state, (list, tuple)) else (state,), options)
