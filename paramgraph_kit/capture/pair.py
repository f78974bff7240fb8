"""One partition captured twice on disjoint phantom memory, compared, and described for launching."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paramgraph_kit.capture.words import Host, Side, merge_ambiguous, notable_words
from paramgraph_kit.driver.api import Driver, RawAllocation, Recording
from paramgraph_kit.driver.progress import now
from paramgraph_kit.driver.tensors import PLAIN, Bits, bits_of, extent, lazily, not_carried
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason, Word

T = TypeVar("T")
ALIGNMENT = 256  # the largest that cuBLAS's choice of kernel looks at
TRITONS = 16  # the largest that Triton's kernels are compiled for
# Inductor's own, which take any address of the alignment that they are compiled for, and our copies.
_GENERATED = ("triton_poi_fused", "triton_red_fused", "triton_per_fused", "triton_tem_fused", "pgk_")


class Kind(Enum):
    """Where a returned value comes from at launch."""

    FRESH = "fresh"  # a tensor on memory allocated for this launch
    INPUT = "input"  # a tensor over an input's memory
    ARGUMENT = "argument"  # the input object itself
    FIXED = "fixed"  # a constant tensor or a value that is no tensor


@dataclass(frozen=True, slots=True)
class Output:
    """How to make one returned value."""

    kind: Kind
    source: int = -1  # FRESH: allocation; INPUT, ARGUMENT: position in the inputs
    offset: int = 0  # bytes from the start of that memory
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    value: Any = None  # FIXED
    bits: Bits = PLAIN

    @property
    def nbytes(self) -> int:
        """From its first to its last element."""
        assert self.dtype is not None
        return self.dtype.itemsize * extent(self.size, self.stride)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What a capture needs to know of one input; None stands for an input that is no tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    alignment: int  # largest power of two up to ALIGNMENT that divides the address
    nbytes: int  # from its first to its last element
    bits: Bits = PLAIN


@dataclass(slots=True)
class Captured:
    """A partition ready to be planned: nodes, their words, the memory they address and what is returned."""

    recording: Recording
    words: list[tuple[Word, ...]]  # of each node the notable ones
    allocations: list[RawAllocation]  # tensor inputs first, in order
    input_positions: list[int]  # position in the inputs of the first len(input_positions) allocations
    outputs: list[Output]
    scalars: tuple[Any, ...] = ()  # inputs that are no tensors: baked into the graph, so part of its key
    specs: list[InputSpec | None] = field(default_factory=list)
    returns_tuple: bool = True
    capture_s: float = 0.0  # seconds that both captures took, running the partition's code
    aligned: int = ALIGNMENT  # as far as its kernels look: what divides an address beyond that makes no difference

    def relax(self) -> None:
        """Ask for no more alignment than the kernels' own, where all of them are known not to be chosen by it."""
        if all(node.name.startswith(_GENERATED) for node in self.recording.nodes):
            self.aligned = TRITONS
            self.specs = [spec and replace(spec, alignment=min(spec.alignment, TRITONS)) for spec in self.specs]

    def takes(self, position: int, address: int) -> bool:
        """Whether an input may lie at this address."""
        spec = self.specs[position]
        return spec is None or min(alignment_of(address), self.aligned) == spec.alignment


def alignment_of(address: int) -> int:
    """The largest power of two up to ALIGNMENT that divides an address (ALIGNMENT for 0)."""
    return min(address & -address, ALIGNMENT) or ALIGNMENT


def describe(driver: Driver, inputs: Sequence[Any]) -> list[InputSpec | None]:
    """Specs of the inputs; raises RefusedError for one that a graph cannot take."""
    specs: list[InputSpec | None] = []
    for position, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            specs.append(None)
            continue
        if x.device != driver.device:
            raise RefusedError(
                Reason(
                    "foreign-input",
                    f"input {position} is on {x.device}, the graph on {driver.device}: its value would be baked",
                )
            )
        if (kind := not_carried(x)) is not None:
            raise RefusedError(Reason("unknown-input", f"input {position} is {kind}: an address says too little of it"))
        size, stride = tuple(x.shape), tuple(x.stride())
        nbytes = extent(size, stride) * x.element_size()
        specs.append(InputSpec(size, stride, x.dtype, alignment_of(driver.address_of(x)), nbytes, bits_of(x)))
    return specs


def capture_pair(
    driver: Driver,
    run: Callable[[list[Any]], Any],
    specs: Sequence[InputSpec | None],
    scalars: Sequence[Any],
    constants: Sequence[torch.Tensor] = (),
    random_increment: int = 0,
    *,
    eager: bool = False,
    anchored: int = 0,
) -> Captured:
    """Capture ``run`` twice and find every pointer in its nodes' parameters.

    ``scalars`` are the inputs that are no tensors, in order; ``eager`` is for code that torch has not generated: it may
    look at an input's storage (``as_strided`` with an offset), whose beginning differs between the two captures, but of
    the first ``anchored`` inputs, which are ``is_anchored`` at each launch.
    Nothing executes. Raises RefusedError where the launcher would not be sure, and whatever a failed capture raises.
    """
    segments = _Segments(driver.live_segments())
    recordings: list[Recording] = []
    sides: list[Side] = []
    outputs: list[list[Output]] = []
    positions = [i for i, spec in enumerate(specs) if spec is not None]
    starts: list[list[int]] = []  # of all that each side handed out
    capture_s = 0.0
    try:
        for side in (0, 1):
            started = time.perf_counter()
            now("captures it, for the first time" if side == 0 else "captures it, for the second time")
            with driver.phantom(side) as phantom:
                offsets = [ALIGNMENT * side if eager and n >= anchored else 0 for n in range(len(specs))]
                mirrors, inputs = _mirror(driver, phantom, specs, scalars, side, offsets)
                recording = driver.record(partial(_call, run, inputs), phantom, survey=side == 0, eager=eager)
                recordings.append(recording)
                capture_s += time.perf_counter() - started
                starts.append(list(phantom.starts))
                try:
                    made = recording.allocations or _moved(recordings[0].allocations, starts[0], starts[-1])
                    allocations = mirrors + merge_ambiguous(made)
                    outputs.append(_outputs(driver, recording.result, inputs, allocations, positions, phantom.contains))
                    returns_tuple = isinstance(recording.result, tuple)
                finally:  # nothing may hold phantom memory once it is unmapped
                    recording.result = None
                    inputs.clear()
                sides.append(Side(recording.nodes, allocations, phantom.contains))
                started = time.perf_counter()
            capture_s += time.perf_counter() - started  # unmapping
        if outputs[0] != outputs[1]:
            raise RefusedError(Reason("unstable-capture", "two captures returned different values"))
        now(f"looks for addresses in {len(sides[0].nodes):,} kernels")
        owned = _owned(driver, recordings[0], constants)
        # Few numbers stand in many nodes, and asking CUDA about each takes microseconds.
        owner = cache(partial(_static_owner, owned=_Spans(owned), segments=segments, known=driver.knows_address))
        host = Host(driver.host_addresses(), driver.reads_host, _owned_on_host(driver, constants))
        words = notable_words(sides[0], sides[1], owner, host)
    except BaseException:
        for recording in recordings:
            driver.discard(recording)
        raise
    driver.discard(recordings[1])
    recordings[0].random_increment = recordings[0].random_increment or random_increment
    return Captured(
        recordings[0],
        words,
        list(sides[0].allocations),
        positions,
        outputs[0],
        tuple(scalars),
        list(specs),
        returns_tuple,
        capture_s,
    )


def launched_by(
    driver: Driver,
    run: Callable[[list[Any]], Any],
    specs: Sequence[InputSpec | None],
    scalars: Sequence[Any],
    position: int,
) -> tuple[Any, int] | None:
    """The operation of torch's that launches the node recorded at ``position``, and how many like it come before.

    None where none does.
    """
    watching = _Watching(driver, position)

    def watched(inputs: list[Any]) -> Any:
        with watching:
            return run(inputs)

    with driver.phantom(0) as phantom:
        _, inputs = _mirror(driver, phantom, specs, scalars, 0, [0] * len(specs))
        recording = driver.record(partial(_call, watched, inputs), phantom, survey=False)
        recording.result = None
        inputs.clear()
    driver.discard(recording)
    return watching.found


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    def __init__(self, driver: Driver, position: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._driver, self._position = driver, position
        self._calls: Counter[str] = Counter()
        self.found: tuple[Any, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._driver.recorded_nodes()
        result = func(*args, **(kwargs or {}))
        if before <= self._position < self._driver.recorded_nodes():
            self.found = func, self._calls[func._schema.name]
        self._calls[func._schema.name] += 1
        return result


def is_anchored(x: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage, so that what counts from where that begins counts from the tensor.

    >>> x = torch.zeros(4, 4)
    >>> is_anchored(x), is_anchored(x.t()), is_anchored(x[1:]), is_anchored(x[:2])
    (True, True, False, False)
    """
    nbytes = extent(x.shape, x.stride()) * x.element_size()
    return x.storage_offset() == 0 and x.untyped_storage().nbytes() == nbytes


def check_alike(captured: Captured, results: Sequence[Any], device: torch.device) -> None:
    """Refuse a capture whose outputs would look unlike the results of an ungraphed call.

    Sizes, strides, types and lazy bits are written into what launches it; where code does otherwise under capture than
    outside, they are not the caller's.
    """
    for index, (output, value) in enumerate(zip(captured.outputs, results, strict=True)):
        if output.kind not in (Kind.FRESH, Kind.INPUT) or is_seed_on_host(value):
            continue
        mine = output.size, output.stride, output.dtype, output.bits, device
        if not isinstance(value, torch.Tensor) or mine != (*_layout(value), bits_of(value), value.device):
            text = f"output {index} is of another shape, layout or type in a capture than in an ordinary call"
            raise RefusedError(Reason("unstable-capture", text))


def is_seed_on_host(value: Any) -> bool:
    """Whether this may be what attention drew its random numbers from: on the host, but on the device in a capture."""
    on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return on_host and not value.dtype.is_floating_point and not value.is_complex() and value.dim() == 0


def _layout(value: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(value.shape), tuple(value.stride()), value.dtype


def _moved(allocations: Sequence[RawAllocation], first: Sequence[int], second: Sequence[int]) -> list[RawAllocation]:
    """One side's allocations as the other side has made them."""
    if len(first) != len(second):
        raise RefusedError(Reason("unstable-capture", "two captures made different allocations"))
    moved = []
    for a in allocations:
        place = bisect.bisect_right(first, a.address) - 1
        moved.append(RawAllocation(a.address - first[place] + second[place], a.size, a.born, a.died))
    return moved


def _call(run: Callable[[list[Any]], Any], inputs: list[Any]) -> Any:
    return run(list(inputs))  # which it empties


def _mirror(
    driver: Driver,
    phantom: Any,
    specs: Sequence[InputSpec | None],
    scalars: Sequence[Any],
    side: int,
    offsets: Sequence[int],
) -> tuple[list[RawAllocation], list[Any]]:
    """Phantom twins of the inputs.

    Each gets memory of its own even where the real ones share a storage, so that a word names one input and a
    later call whose inputs are arranged differently is still right. Two sides' lie differently beyond their alignment,
    so that what is made of that differs, too; ``offsets``: elements of each one's storage that lie before it.
    """
    mirrors: list[RawAllocation] = []
    inputs: list[Any] = []
    rest = iter(scalars)
    for spec, offset in zip(specs, offsets, strict=True):
        if spec is None:
            inputs.append(next(rest))
            continue
        residue = spec.alignment * (1 + 2 * side) if spec.alignment < ALIGNMENT else ALIGNMENT * side
        address = phantom.reserve(spec.nbytes, residue)
        mirrors.append(RawAllocation(address, spec.nbytes, 0))
        before = offset * spec.dtype.itemsize
        twin = driver.tensor_at(address - before, before + spec.nbytes, spec.size, spec.stride, offset, spec.dtype)
        inputs.append(lazily(twin, spec.bits))
    return mirrors, inputs


def _outputs(
    driver: Driver,
    result: Any,
    inputs: Sequence[Any],
    allocations: Sequence[RawAllocation],
    positions: Sequence[int],
    contains: Callable[[int], bool],
) -> list[Output]:
    if not isinstance(result, (list, tuple)):
        raise RefusedError(Reason("unknown-output", f"the partition returned a {type(result).__name__}"))
    by_identity = {id(x): i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    standing = _Spans([(a.address, max(a.size, 1), i) for i, a in enumerate(allocations) if a.died is None])
    outputs = []
    for index, value in enumerate(result):
        if not isinstance(value, torch.Tensor):
            outputs.append(Output(Kind.FIXED, value=value))
        elif id(value) in by_identity:
            outputs.append(Output(Kind.ARGUMENT, by_identity[id(value)]))
        elif (kind := not_carried(value)) is not None:
            raise RefusedError(Reason("unknown-output", f"output {index} is {kind}, which a launch cannot make"))
        elif value.device != driver.device or (value.numel() and not contains(driver.address_of(value))):
            outputs.append(_outside(driver, value, index))
        elif type(value) is not torch.Tensor:  # memory as any other's, and a class
            kind = type(value).__name__
            raise RefusedError(Reason("unknown-output", f"output {index} is a {kind}, which a launch cannot make"))
        elif value.numel() == 0:  # wherever it points, there is nothing
            outputs.append(Output(Kind.FRESH, -1, 0, *_layout(value), bits=bits_of(value)))
        else:
            outputs.append(_inside(driver, value, index, standing, positions))
    return outputs


def _outside(driver: Driver, value: torch.Tensor, index: int) -> Output:
    if value.device != driver.device:
        raise RefusedError(Reason("host-output", f"output {index} is on {value.device}: its value would be frozen"))
    return Output(Kind.FIXED, value=_Identity(value))


class _Identity:
    """A tensor compared by identity: a constant is the same object in both captures, anything else is refused."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


def _inside(
    driver: Driver,
    value: torch.Tensor,
    index: int,
    standing: _Spans[int],
    positions: Sequence[int],
) -> Output:
    address = driver.address_of(value)
    if (found := standing.first(address)) is None:
        raise RefusedError(Reason("unknown-output", f"output {index} lies in memory that nothing allocated"))
    start, _, i = found
    if i >= len(positions):
        return Output(Kind.FRESH, i, address - start, *_layout(value), bits=bits_of(value))
    return Output(Kind.INPUT, positions[i], address - start, *_layout(value), bits=bits_of(value))


class _Spans(Generic[T]):
    """Ranges of addresses, with what they are: many are asked for, among many."""

    def __init__(self, spans: Sequence[tuple[int, int, T]]) -> None:
        self._spans = spans
        self._order = sorted(range(len(spans)), key=lambda n: spans[n][0])
        self._starts = [spans[n][0] for n in self._order]
        self._furthest = list(accumulate((spans[n][0] + spans[n][1] for n in self._order), max))  # of all up to here

    def first(self, address: int) -> tuple[int, int, T] | None:
        """The first of them, in the order that they were given in, that has the address."""
        k, best = bisect.bisect_right(self._starts, address) - 1, len(self._spans)
        while k >= 0 and address < self._furthest[k]:
            start, nbytes, _ = self._spans[self._order[k]]
            if address < start + nbytes:
                best = min(best, self._order[k])
            k -= 1
        return self._spans[best] if best < len(self._spans) else None


class _Segments:
    def __init__(self, segments: Sequence[tuple[int, int]]) -> None:
        self._segments = sorted(segments)
        self._starts = [start for start, _ in self._segments]

    def __contains__(self, address: int) -> bool:
        i = bisect.bisect_right(self._starts, address) - 1
        return i >= 0 and address < sum(self._segments[i])


def _owned(driver: Driver, recording: Recording, constants: Sequence[torch.Tensor]) -> list[tuple[int, int, str]]:
    mine = [t for t in constants if t.device == driver.device]
    return recording.static_ranges + [(*driver.storage_of(t), "constant of the model") for t in mine]


def _owned_on_host(driver: Driver, constants: Sequence[torch.Tensor]) -> list[tuple[int, int, str]]:
    return [(*driver.storage_of(t), "constant of the model") for t in constants if t.device.type == "cpu"]


def _static_owner(value: int, owned: _Spans[str], segments: _Segments, known: Callable[[int], bool]) -> str | None:
    if value not in segments and not known(value):
        return None
    if (found := owned.first(value)) is not None:
        return found[2]
    refusal = RefusedError(
        Reason("unowned-address", "a kernel reads device memory that is no input and no constant of the model")
    )
    refusal.address, refusal.outside = value, value not in segments
    raise refusal
