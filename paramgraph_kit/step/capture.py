"""Capturing a step: its state keeps its real addresses in both captures, only arguments and cells are mirrored.

Capture executes nothing, so real parameters are safe, and what Python code does to places is undone afterwards.
"""

from __future__ import annotations

import gc
import types
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.plain import flatten, same
from paramgraph_kit.capture.pair import (
    ALIGNMENT,
    Captured,
    InputSpec,
    Kind,
    Output,
    capture_pair,
    check_alike,
    describe,
)
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.collection import everything
from paramgraph_kit.driver.tensors import PLAIN, Bits, bits_of, has_memory, parts_of
from paramgraph_kit.launch.launcher import Called
from paramgraph_kit.launch.plan import GRAIN
from paramgraph_kit.step.called import called_in
from paramgraph_kit.step.cells import TENSOR, Cell, cells_of, layout
from paramgraph_kit.step.holders import EMPTY
from paramgraph_kit.step.observe import Change, Deferred, Observation, busy, deferring, here
from paramgraph_kit.step.refusals import failed
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason, Word, WordKind


@dataclass(slots=True)
class Recorded:
    """A captured step: what a launch takes, in this order, and what it gives."""

    captured: Captured
    arguments: int  # inputs that are tensors among the arguments
    kept: list[int]  # gradients on memory that is used again at each launch, by number: the last of the inputs
    cells: list[Cell]  # what they hold at entry, as far as the graph reads it, are the inputs between
    order: Order
    used: list[torch.Tensor]  # the state that the graph addresses where it lies
    state: list[torch.Tensor]  # all of it that results lie in
    spent: list[int]  # results, by number, whose backward pass the step has done
    first: Deferred  # what is called on the host before the launch and after it
    last: Deferred
    anchored: bool  # each argument is all of its storage: something counts from where that begins
    called: Called


@dataclass(frozen=True, slots=True)
class Alias:
    """A result that lies in the state's own memory."""

    base: int  # id of the tensor that is the state's
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    bits: Bits = PLAIN


def record_step(
    driver: Driver,
    call: Callable[[Sequence[torch.Tensor]], Any],
    arguments: Sequence[torch.Tensor],
    seen: Observation,
    *,
    lazily: bool,
    anchored: bool = False,
) -> Recorded:
    """Capture ``call(arguments)`` as it was observed: from the same entry to the same exit.

    ``lazily``: it was the first such call, which may have made things that stay; ``anchored``: each argument of a
    launch is all of its storage.

    Raises:
        RefusedError: a launch would not do all that the call does, or nobody is sure.
    """
    found = cells_of([*seen.changes, *_gradients(seen)], lazily)
    entries = [flatten(change.before) for change, _, _ in found]
    entering = [x for leaves, _ in entries for x in leaves if isinstance(x, torch.Tensor)]
    state = _state(driver, seen)
    taker = _Taker(driver, call, len(arguments), seen, found, state)
    try:
        captured = capture_pair(
            driver,
            taker.run,
            describe(driver, [*arguments, *entering]),
            (),
            [tensor for _, tensor in state.values()],
            seen.random_increment,
            eager=True,
            anchored=len(arguments) if anchored else 0,
        )
    except RefusedError as refusal:
        raise RefusedError(_named(refusal, driver.device)) from refusal
    tensors, order = numbered(seen.result, [change.after for change, _, _ in found])
    if not all(order.same(other) for other in taker.orders):
        text = "a capture made other results than the call before: make caches before the first call, and leave to the"
        raise RefusedError(Reason("unstable-capture", f"{text} host what depends on how often it was called"))
    check_alike(captured, tensors, driver.device)
    spent = [n for n, x in enumerate(tensors) if x.requires_grad]
    if any(captured.outputs[n].kind is not Kind.FRESH for n in spent):
        text = "a result needs gradients and lies in memory that was there before: return a copy, y.detach().clone()"
        raise RefusedError(Reason("requires-grad", text))
    del tensors
    first, last = _around(taker.deferred, len(captured.recording.nodes))
    cells, at, needed = [], len(arguments), _needed(captured)
    for (change, _, exit_spec), (leaves, entry_spec), (numbers, exit_plain) in zip(
        found, entries, order.exits, strict=True
    ):
        layouts = [layout(x) if isinstance(x, torch.Tensor) else None for x in leaves]
        kept_leaves = [TENSOR if isinstance(x, torch.Tensor) else x for x in leaves]
        cell = Cell(change.holder, change.key, kept_leaves, entry_spec, layouts, numbers, exit_plain, exit_spec)
        mirrors = range(at, at + sum(known is not None for known in layouts))
        cell.reads = [n for n, k in enumerate(mirrors) if k in needed]
        at = mirrors.stop
        cells.append(cell)
    keep = _keepable(captured, cells, order.results, driver.device)
    arranged = _arrange(captured, len(arguments), keep)
    used = _used(arranged.words, driver, state)
    bases = [state[o.value.base][1] for o in captured.outputs if isinstance(o.value, Alias)]
    called = called_in(driver, arguments, seen, cells, keep, len(captured.outputs), used, state)
    return Recorded(arranged, len(arguments), keep, cells, order, used, bases, spent, first, last, anchored, called)


def _needed(captured: Captured) -> set[int]:
    """The allocations that a launch addresses, and the inputs that it returns."""
    addressed = {w.allocation for node in captured.words for w in node if w.allocation is not None}
    return addressed | {o.source for o in captured.outputs if o.kind in (Kind.INPUT, Kind.ARGUMENT)}


def _keepable(
    captured: Captured, cells: Sequence[Cell], results: Sequence[int | None], device: torch.device
) -> list[int]:
    """Gradients, by number, that are like those at entry, on allocations of their own, and nowhere else a result.

    Such an allocation may be larger: Inductor pads the last of a model's weights, and where a convolution's workspace
    lay before in the same call of torch's, the two are one. Where there were none at entry, somebody gives them back
    between steps: those are made anew.
    """
    outputs = captured.outputs
    taken = Counter(o.source for o in outputs if o.kind is Kind.FRESH)
    named = Counter(n for n in results if n is not None)
    named.update(n for cell in cells for n in cell.exits if n is not None)
    return [
        n
        for n, cell in ((cell.exits[0], cell) for cell in cells if cell.holder.kind == "gradient" and not cell.reads)
        if n is not None
        and cell.layouts[0] == (outputs[n].size, outputs[n].stride, outputs[n].dtype, device, False)
        and named[n] == 1
        and outputs[n].kind is Kind.FRESH
        and taken[outputs[n].source] == 1
        and outputs[n].offset == 0
        and outputs[n].bits == PLAIN
        and captured.allocations[outputs[n].source].size > 0
    ]


class _Taker:
    """Runs the step under capture and takes the tensors that it leaves."""

    def __init__(
        self,
        driver: Driver,
        call: Callable[[Sequence[torch.Tensor]], Any],
        arguments: int,
        seen: Observation,
        found: Sequence[Any],
        state: State,
    ) -> None:
        self._driver, self._call, self._arguments, self._seen = driver, call, arguments, seen
        self._changes = [change for change, _, _ in found]
        self._specs = [spec for _, _, spec in found]
        self._known = set(state)
        self._starts = {driver.storage_of(t)[0]: key for key, (_, t) in state.items() if t.numel()}
        self.orders: list[Order] = []
        self.deferred: list[tuple[int, Any]] = []

    def run(self, inputs: list[torch.Tensor]) -> list[Any]:
        arguments, entering = inputs[: self._arguments], iter(inputs[self._arguments :])
        inputs.clear()
        seen, driver = self._seen, self._driver
        at: list[int] = []
        seen.before.put_back()
        try:
            for change in self._changes:
                leaves, spec = flatten(change.before)
                mirrors = [next(entering) if isinstance(x, torch.Tensor) else x for x in leaves]
                if any(isinstance(x, torch.Tensor) for x in leaves):
                    change.holder.put(change.key, pytree.tree_unflatten(mirrors, spec))
            note = lambda: at.append(driver.recorded_nodes())  # noqa: E731
            with busy(), here(), deferring(seen.before.reach.schedulers, run=False, note=note) as calls:
                result = self._called(arguments)
            self.deferred = list(zip(at, calls, strict=True))
            return self._take(result)
        finally:
            seen.before.put_back()  # containers that the call has filled
            seen.after.put_back()
            for change in self._changes:
                if change.holder.kind == "data":
                    change.holder.put(change.key, change.after)

    def _called(self, arguments: Sequence[torch.Tensor]) -> Any:
        try:
            return self._call(arguments)
        except RefusedError:
            raise
        except Exception as error:  # explained here, while its frames still have their variables
            raise RefusedError(failed(error)) from error

    def _take(self, result: Any) -> list[Any]:
        held = [change.holder.read().get(change.key, EMPTY) for change in self._changes]
        for change, now, known in zip(self._changes, held, self._specs, strict=True):
            if flatten(now)[1] != known:
                text = f"{change.place} is of another kind under capture than in the call before: decide that outside"
                raise RefusedError(Reason("unstable-capture", text))
        tensors, order = numbered(result, held)
        self.orders.append(order)
        return [self._alias(x) for x in tensors]

    def _alias(self, tensor: torch.Tensor) -> Any:
        """What lies in the state's own memory is no tensor of the graph's."""
        if id(tensor) in self._known or tensor.device != self._driver.device or not tensor.numel():
            return tensor
        base = self._starts.get(self._driver.storage_of(tensor)[0])
        if base is None:
            return tensor
        if type(tensor) is not torch.Tensor:
            text = f"it leaves a view of its state that is a {type(tensor).__name__}, which no launch can make"
            raise RefusedError(Reason("unknown-output", f"{text}: leave plain tensors"))
        lies = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        return Alias(base, *lies, tensor.dtype, bits_of(tensor))


@dataclass(frozen=True, slots=True)
class Order:
    """Where the tensors that a call leaves go: each leaf's number among them, or None for a plain value."""

    results: list[int | None]
    plain: list[Any]
    spec: pytree.TreeSpec
    exits: list[tuple[list[int | None], list[Any]]]

    def same(self, other: Order) -> bool:
        """Whether two calls have left the same."""
        mine, others = (self.results, self.plain, self.exits), (other.results, other.plain, other.exits)
        return self.spec == other.spec and same(mine, others)


def numbered(result: Any, held: Sequence[Any]) -> tuple[list[torch.Tensor], Order]:
    """All tensors in a result and in what cells hold, each once, and where they go."""
    tensors: list[torch.Tensor] = []
    numbers: dict[int, int] = {}

    def leaves_of(leaves: Sequence[Any]) -> tuple[list[int | None], list[Any]]:
        found: list[int | None] = []
        for x in leaves:
            if isinstance(x, torch.Tensor) and id(x) not in numbers:
                numbers[id(x)] = len(tensors)
                tensors.append(x)
            found.append(numbers[id(x)] if isinstance(x, torch.Tensor) else None)
        return found, [None if isinstance(x, torch.Tensor) else x for x in leaves]

    leaves, spec = flatten(result)
    results, plain = leaves_of(leaves)
    return tensors, Order(results, plain, spec, [leaves_of(flatten(value)[0]) for value in held])


_LOOKING = types.FrameType
State = dict[int, tuple[str, torch.Tensor]]  # by id: name and tensor


def _gradients(seen: Observation) -> Iterator[Change]:
    """Gradients that are the same tensors afterwards: written in place or not, they may be others at another call."""
    changed = {id(change.holder.target) for change in seen.changes if change.holder.kind == "gradient"}
    for holder, contents in zip(seen.before.reach.holders, seen.before.contents, strict=True):
        if holder.kind == "gradient" and contents[""] is not None and id(holder.target) not in changed:
            yield Change(holder, "", contents[""], contents[""])


def _state(driver: Driver, seen: Observation) -> State:
    """The device's tensors that were there before the call and afterwards."""
    constants = {key: ("a constant of compiled code", t) for key, t in seen.names.constants.items()}
    tensors = {**constants, **seen.after.reach.tensors, **seen.before.reach.tensors}
    moved = {id(change.holder.target) for change in seen.changes if change.holder.kind == "data"}
    there = {key: (name, t) for key, (name, t) in tensors.items() if t.device == driver.device}
    for name, t in there.values():
        if t.layout == torch.strided and not has_memory(t):
            _check_wrapper(name, t)
    return {key: each for key, each in there.items() if has_memory(each[1]) and key not in moved}


def _check_wrapper(name: str, tensor: torch.Tensor) -> None:
    """Of a subclass without memory of its own, the tensors inside are the state: if it tells them, and is all here.

    Raises:
        RefusedError: it does not tell, or its parts are on several devices.
    """
    kind = type(tensor).__name__
    if parts_of(tensor) is None:
        text = f"{name} is a {kind}, which does not tell what tensors it has inside: give the class __tensor_flatten__"
        raise RefusedError(Reason("hidden-tensor", f"{text}, or keep plain tensors"))
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is not None and mesh.size() > 1:
        text = f"{name} is a {kind} on {mesh.size()} devices, and collectives work on streams of their own: compile the"
        raise RefusedError(Reason("user-stream", f"{text} model's blocks with torch.compile instead"))


def _arrange(captured: Captured, arguments: int, keep: Sequence[int]) -> Captured:
    """Leave out entering tensors that nobody reads, and let results that a launch may write over be inputs."""
    mirrors = len(captured.input_positions)
    needed = _needed(captured)
    inputs = [k for k in range(mirrors) if k < arguments or k in needed]
    kept = [captured.outputs[n].source for n in keep]
    before = {*inputs, *kept}
    order = [*inputs, *kept, *(i for i in range(mirrors, len(captured.allocations)) if i not in before)]
    place = {old: new for new, old in enumerate(order)}
    outputs = [replace(o, source=place[o.source]) if o.source >= 0 else o for o in captured.outputs]
    for n, number in enumerate(keep):
        outputs[number] = Output(Kind.ARGUMENT, len(inputs) + n)
    specs = [captured.specs[k] for k in inputs] + [_spec(captured, number) for number in keep]
    words = [tuple(w if w.allocation is None else replace(w, allocation=place[w.allocation]) for w in node)
             for node in captured.words]  # fmt: skip
    return replace(
        captured,
        words=words,
        allocations=[captured.allocations[i] for i in order],
        input_positions=list(range(len(specs))),
        outputs=outputs,
        specs=specs,
    )


def _spec(captured: Captured, number: int) -> InputSpec:
    """Of a gradient with all that a launch may write of its allocation."""
    output = captured.outputs[number]
    assert output.dtype is not None
    own, whole = output.nbytes, captured.allocations[output.source].size
    nbytes = whole if whole > -(-own // GRAIN) * GRAIN else own  # the allocator rounds up by itself
    return InputSpec(output.size, output.stride, output.dtype, ALIGNMENT, nbytes)


def _around(deferred: Sequence[tuple[int, Any]], nodes: int) -> tuple[Deferred, Deferred]:
    """Calls on the host that come before all of the step's kernels, and behind them."""
    if any(0 < at < nodes for at, _ in deferred):
        text = "a scheduler's step() is called between kernels of the step: call it last"
        raise RefusedError(Reason("side-effect", text))
    return [c for at, c in deferred if not at and nodes], [c for at, c in deferred if at or not nodes]


def _used(words: Sequence[Sequence[Word]], driver: Driver, state: State) -> list[torch.Tensor]:
    """The tensors of the state whose memory some word names."""
    spans = sorted((*driver.storage_of(t), key) for key, (_, t) in state.items() if t.numel())
    starts = [start for start, _, _ in spans]
    hit: set[int] = set()
    for value in {w.value for node in words for w in node if w.kind is WordKind.SCALAR and w.value}:
        n = bisect_right(starts, value) - 1
        while n >= 0 and spans[n][0] <= value < spans[n][0] + spans[n][1]:
            hit.add(spans[n][2])
            n -= 1
    return [tensor for key, (_, tensor) in state.items() if key in hit]


def _named(refusal: RefusedError, device: torch.device) -> Reason:
    """A tensor that no root of the step leads to, with what is known of it."""
    reason, address = refusal.reason, refusal.address
    if address is None:
        return reason
    everything()
    alive = (t for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and t.device == device)
    alive = (t for t in alive if not isinstance(t, FakeTensor))  # of a trace, on no memory
    found = min((t for t in alive if _covers(t, address)), key=torch.Tensor.numel, default=None)
    what = f"a tensor of {list(found.shape)} ({found.dtype})" if found is not None else "memory of the device"
    text = (
        f"a kernel reads {what} that neither the arguments nor state= lead to{_held_by(found)}: give state= what holds"
    )
    text = f"{text} it, or hand it over as an argument"
    return replace(reason, code="hidden-tensor", message=text)


def _held_by(tensor: torch.Tensor | None) -> str:
    """What refers to it, but for what is looking."""
    kinds = sorted({type(x).__name__ for x in gc.get_referrers(tensor) if not isinstance(x, _LOOKING)})
    return f" (held by {', '.join(kinds[:3])})" if tensor is not None and kinds else ""


def _covers(tensor: torch.Tensor, address: int) -> bool:
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return False
