"""One captured step and its launches: the guard, today's addresses, the launch, and what Python sees afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.capture.pair import Kind, alignment_of
from paramgraph_kit.driver.api import Driver, Executable
from paramgraph_kit.driver.native.tensors import Gradients, written
from paramgraph_kit.driver.progress import now
from paramgraph_kit.driver.tensors import bits_of, lazily
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.generate import Form, State, launch_function
from paramgraph_kit.launch.launcher import Options, Variant
from paramgraph_kit.launch.plan import make_plan
from paramgraph_kit.step.capture import Alias, Recorded
from paramgraph_kit.step.guard import Difference, Guard
from paramgraph_kit.step.kept import Kept
from paramgraph_kit.step.observe import Deferred
from paramgraph_kit.step.spent import spent
from paramgraph_kit.step.steady import Entering
from paramgraph_kit.step.verify import Checked, Comparison

_as_strided, _detach, _view = torch.Tensor.as_strided, torch.Tensor.detach, torch.Tensor.view  # users replace them
MISFIT = object()  # what a launch returns that was not made: what cells hold is aligned otherwise


class Graphed:
    """Launches one captured step; ``fits`` has to say before each call that it may."""

    def __init__(
        self,
        driver: Driver,
        recorded: Recorded,
        guard: Guard,
        arguments: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        kept: Kept,
        code: PartitionCode,
        options: Options,
    ) -> None:
        self._driver, self._recorded, self._guard = driver, recorded, guard
        self.anchored = recorded.anchored
        started = time.perf_counter()
        captured = recorded.captured
        inputs = len(captured.specs)
        kept_at = range(inputs - len(recorded.kept), inputs)
        now("plans where memory lies and makes the graph")
        plan = make_plan(captured, most_stages=options.stages, rewritten=kept_at)
        executables: list[Executable] = []
        try:
            make = partial(driver.instantiate, captured.recording, patching=options.patching)
            executables += [make(stage.nodes, stage.bindings, len(stage.slots)) for stage in plan.stages]
        except BaseException:
            for executable in executables:
                executable.destroy()
            driver.discard(captured.recording)
            raise
        state = State(threading.Lock(), plan)
        misfit = lambda _: MISFIT  # noqa: E731
        form = Form(
            together=kept_at,
            switched=True,  # by the key of the call, and no watched call that changes them is captured
            before=self._schedule_first if recorded.first else None,
        )
        launch = launch_function(driver, captured, plan, executables, state, misfit, misfit, code, form)
        self.checked = Checked()
        probation: Any = self.checked
        self.variant = Variant(
            captured, plan, tuple(executables), state, launch, probation, time.perf_counter() - started, recorded.called
        )
        self._launch = launch
        self._kept = kept
        self._aliases = {
            n: output.value
            for n, output in enumerate(captured.outputs)
            if output.kind is Kind.FIXED and isinstance(output.value, Alias)
        }
        place = {id(x): n for n, x in enumerate(arguments)}
        self._known = guard.among(arguments)
        self._written = [t for t in writes if id(t) not in place]
        self._written_arguments = [place[id(t)] for t in writes if id(t) in place]
        self._bases = {id(t): t for t in recorded.state}
        # Gradients on memory that is used again, in the order of that: nearly always they are there already.
        order = {number: n for n, number in enumerate(recorded.kept)}
        again = {order[c.exits[0]]: c for c in recorded.cells if c.exits and c.exits[0] in order}
        self._again = [again[n] for n in range(len(order))]
        self._others = [cell for cell in recorded.cells if not cell.exits or cell.exits[0] not in order]
        self._parameters = [cell.holder.target for cell in self._again]
        self._there = self._settled = False
        self._gradients = Gradients(self._parameters)
        self._enters = Entering(captured, recorded.arguments, self._others)
        self._to_write = self._enters.written
        self._entering: list[torch.Tensor] = []

    def __repr__(self) -> str:
        return f"Graphed({len(self.variant.captured.recording.nodes)} nodes, {self.variant.state.launches} launches)"

    def fits(self) -> bool:
        """Whether a launch now would do what the call would do; to be asked before each."""
        return self._guard.holds() and self._cells_fit()

    def knows(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Whether arguments are tensors of the state just where they were: code can compare them with those."""
        return self._guard.among(arguments) == self._known

    def difference(self) -> Difference | None:
        """Why it does not fit, if a place holds something else."""
        return self._guard.difference()

    def moved(self) -> bool:
        """Whether the state lies elsewhere, so that it will never fit again."""
        return not self._guard.stays()

    def launch(self, arguments: list[torch.Tensor]) -> Any:
        """The step, from its graph; ``MISFIT`` if there was no launch."""
        recorded = self._recorded
        if not self._settled and not self._settle(arguments):
            return MISFIT
        kept, renewed = self._kept.free(None if self._there else self._parameters)
        self._there = self._there and not renewed
        inputs = [*arguments, *self._entering, kept] if kept else [*arguments, *self._entering]
        tensors = self._launch(inputs)
        if tensors is MISFIT:
            return MISFIT
        for n, alias in self._aliases.items():
            tensors[n] = self._alias(alias)
        for n in recorded.spent:
            tensors[n] = spent(tensors[n])
        self._write(tensors)
        written(self._written)
        written(self._kept.tensors)
        if self._written_arguments:
            written([arguments[n] for n in self._written_arguments])
        _schedule(recorded.last)
        order = recorded.order
        leaves = [p if n is None else tensors[n] for n, p in zip(order.results, order.plain, strict=True)]
        return pytree.tree_unflatten(leaves, order.spec)

    def compared(
        self,
        arguments: list[torch.Tensor],
        call: Callable[[], Any],
        quiet: Callable[[], AbstractContextManager[Any]],
    ) -> Any:
        """The same, beside the ungraphed call: what is returned is right in any case."""
        if not self._aligned(arguments):
            return MISFIT
        for stream in self.variant.captured.recording.streams:  # what is queued there may still write the state
            self._driver.join_streams(stream, self._driver.current_stream())
        _schedule(self._recorded.first)  # both ways compute with what it writes
        # Each run makes its gradients anew, as without a graph: memory for one set of them is enough.
        self._kept.forget()
        self._settled = False
        comparison = Comparison(self._driver, self._others, self._again, self._guard.tensors, arguments, quiet)

        def launched() -> Any:
            self._cells_fit()
            return self.launch(arguments)

        result, self.checked.failed, equal = comparison.run(call, launched)
        self.checked.verified += equal
        self.checked.unordered += not equal and self.checked.failed is None
        _schedule(self._recorded.last)
        return result

    @property
    def deferred(self) -> Deferred:
        """What is called on the host around a launch."""
        return [*self._recorded.first, *self._recorded.last]

    def destroy(self) -> None:
        """Free its executables, once no other thread is about to launch them."""
        with self.variant.state.lock:
            for executable in self.variant.executables:
                executable.destroy()
        self._driver.discard(self.variant.captured.recording)

    def _aligned(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Whether all that a launch reads lies as what was captured did."""
        entering = [*arguments, *self._entering]
        specs = self.variant.captured.specs[: len(entering)]
        address = self._driver.address_of
        return all(not s or alignment_of(address(x)) == s.alignment for x, s in zip(entering, specs, strict=True))

    def _settle(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Before the first launch, leave no more of the ungraphed calls' memory than a graph needs.

        Their gradients lie between what they computed with, and keep it from being given back or used whole.
        """
        if not self._aligned(arguments):
            return False
        new = not self._kept.tensors
        if new:
            for parameter in self._parameters:
                parameter.grad = None  # a launch makes them anew, and reads none
        self._driver.release_cached()
        _, renewed = self._kept.free(None if self._there else self._parameters)
        self._there = self._there and not renewed
        if new:
            for parameter, gradient in zip(self._parameters, self._kept.tensors, strict=True):
                parameter.grad = gradient
            self._there = True
        self._settled = True
        return True

    def _schedule_first(self) -> None:
        _schedule(self._recorded.first)

    def _cells_fit(self) -> bool:
        """Whether cells hold what they held at the captured entry, or its like; notes what a launch reads of them."""
        kept = self._kept.tensors
        self._there = bool(kept) and self._gradients.are(kept)
        if not self._there and any(cell.entering() is None for cell in self._again):
            return False
        if (entering := self._enters.now()) is None:
            return False
        self._entering = entering
        return True

    def _write(self, tensors: Sequence[torch.Tensor]) -> None:
        kept = self._kept.tensors
        if not self._there:
            for parameter, gradient in zip(self._parameters, kept, strict=True):
                parameter.grad = gradient
        for cell in self._to_write:
            cell.put(tensors)

    def _alias(self, alias: Alias) -> torch.Tensor:
        base = _detach(self._bases[alias.base])
        plain = lazily(base, bits_of(base))
        if base.dtype != alias.dtype:  # the real part of complex numbers, their bytes
            last = alias.offset + sum((n - 1) * step for n, step in zip(alias.size, alias.stride, strict=True))
            length = -(-(last + 1) * alias.dtype.itemsize // base.itemsize)
            plain = _view(_as_strided(plain, (length,), (1,), 0), alias.dtype)
        return lazily(_as_strided(plain, alias.size, alias.stride, alias.offset), alias.bits)


def _schedule(calls: Deferred) -> None:
    for scheduler, args, kwargs in calls:
        scheduler.step(*args, **kwargs)
