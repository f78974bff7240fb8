"""What a device must be able to do; everything above the drivers is written against this.

Two implementations: ``driver/cuda`` over torch.cuda and cuda-bindings, ``driver/sim`` over host memory.
Addresses are integers, sizes bytes, streams raw integers (0 is the default stream).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from paramgraph_kit.trace.model import NodeKind, PoolEvent, Reason, Source

TIMED_EVENT = Reason(
    "timed-event",
    "it records an event that measures time, and a launch is one moment: record it before and after the call",
)


@dataclass(slots=True)
class RawNode:
    """A recorded node before its words are classified."""

    kind: NodeKind
    name: str
    parameters: bytes  # the packed parameter buffer, as the kernel will read it
    deps: tuple[int, ...]  # indices of the nodes it depends on (smaller ones, after sorting)
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    position: int = 0  # when it was recorded; deps are an order, this is a time
    lowered_from: NodeKind | None = None
    layout: tuple[tuple[int, int], ...] = ()  # (offset, size) of each parameter in the buffer, where it is known
    origin: tuple[str, int] | None = None  # the line that recorded it, generated or the user's, where that is known
    writes_addresses: bool = False  # whether it may write addresses to a table, for a later node to read through
    handle: Any = None  # the driver's own


@dataclass(slots=True)
class RawAllocation:
    """An allocation of phantom memory made while recording (or an input mirrored before it)."""

    address: int
    size: int
    born: int  # nodes recorded before it was made; 0 for inputs
    died: int | None = None  # nodes recorded before it was freed; None if never


@dataclass(slots=True)
class Recording:
    """What one capture on phantom memory left behind."""

    nodes: list[RawNode]
    allocations: list[RawAllocation]
    result: Any  # what the captured function returned, tensors on phantom memory
    graph: Any  # the driver's handle of the graph
    random_increment: int = 0  # how far one launch moves the generator; 0: no random numbers
    static_ranges: list[tuple[int, int, str]] = field(default_factory=list)  # (address, size, owner)
    streams: tuple[int, ...] = ()  # others that were forked from the captured one and joined again
    events: tuple[Any, ...] = ()  # recorded in it, and there for somebody to wait for


@dataclass(frozen=True, slots=True)
class Binding:
    """Word ``offset`` of node ``node`` holds ``addresses[slot] + delta``."""

    node: int
    offset: int
    slot: int
    delta: int


class Phantom(Protocol):
    """Address ranges that a capture may record but never touch; gone after ``with``."""

    @property
    def starts(self) -> Sequence[int]:
        """Addresses of all that was handed out, in order: inputs, then what was allocated; alike on both sides."""

    def reserve(self, nbytes: int, residue: int = 0) -> int:
        """An address for an input of ``nbytes``, equal to ``residue`` modulo 512, with a gap on either side."""

    def contains(self, address: int) -> bool:
        """Whether ``address`` lies in this phantom's ranges."""


class Executable(Protocol):
    """An instantiated graph whose pointer words can be rewritten.

    ``patch(addresses)`` writes one address per slot to every bound word, in stream order;
    ``launch(stream)`` replays, first bringing the random-number state up to date.
    """

    patch: Callable[[Sequence[int]], None]
    launch: Callable[[int], None]
    patching: str  # "device", "host" or "simulated"
    device_bytes: int  # device memory that the executable itself holds

    def destroy(self) -> None:
        """Free the executable; the object is unusable afterwards."""


class Driver(Protocol):
    """A device, as the layers above see it."""

    name: str  # "cuda" or "sim"
    device: torch.device
    event_type: type  # of what users record on streams

    # Hot path: plain functions, looked up once and called at every launch.
    address_of: Callable[[torch.Tensor], int]  # address of a tensor's first element
    empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
    reinterpret: Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...], int], torch.Tensor]
    allocate: Callable[[int, int], int]  # (nbytes, stream) -> address, from the caching allocator
    free: Callable[[int], None]
    current_stream: Callable[[], int]
    is_capturing: Callable[[], bool]  # whether the current stream captures, for somebody else

    library_state: Callable[[], tuple[Any, ...]]  # switches that libraries choose kernels by and nobody else guards

    def source(self) -> Source:
        """The machine and versions, for labels."""

    def storage_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        """(address, bytes) of the storage that a tensor views."""

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor over foreign memory: ``nbytes`` at ``address``, viewed with size, stride, offset (elements)."""

    def phantom(self, side: int) -> AbstractContextManager[Phantom]:
        """Phantom memory for capture ``side`` (0 or 1); the two sides' ranges are disjoint."""

    def record(self, run: Callable[[], Any], phantom: Phantom, *, survey: bool, eager: bool = False) -> Recording:
        """Run ``run`` under stream capture, its allocations served from ``phantom``; execute nothing.

        Without ``survey`` a driver whose two sides lay memory out alike may leave the allocations out. ``eager`` is
        for code that torch has not generated: the survey looks into its backward passes.

        Raises RefusedError where a node's kind or a pending state rules parameterized launch out, and lets
        the exception of a failed capture through after restoring stream, generator and pools.
        """

    def recorded_nodes(self) -> int:
        """How many nodes the capture of the current stream has so far; 0 where none is under way."""

    def describe(self, graph: Any) -> list[RawNode]:
        """The nodes of a ``CUDAGraph`` that somebody else captured, as they are: nothing lowered, nothing refused.

        Raises UnsupportedError where the graph was not kept, which ``CUDAGraph(keep_graph=True)`` asks for.
        """

    def freed(self, graph: Any) -> list[tuple[int, tuple[str, int] | None]]:
        """Addresses of memory from outside of a graph's capture that it touches, and that was freed since.

        Each with the line that touches it first, where that is known; nothing where the device cannot tell.
        """

    def touched(self, graph: Any) -> list[int]:
        """Addresses of all memory from outside of a graph's capture that it touches; nothing where nobody can tell."""

    def pooled(self, graph: Any) -> list[tuple[int, int, int, bool]]:
        """Memory in pools of graphs that a graph touches; nothing where nobody can tell.

        Each with a number of its own, which stays the same from graph to graph, its address and its size, and whether
        this graph makes it: else it reads there what another one has made.
        """

    def pool_number(self, tensor: torch.Tensor) -> int:
        """The number that ``pooled`` has for a tensor's memory; 0 where nobody can tell."""

    def instantiate(
        self, recording: Recording, nodes: range, bindings: Sequence[Binding], slots: int, *, patching: str
    ) -> Executable:
        """Turn some nodes of a recorded graph, one after the other in its order, into an executable.

        ``patch`` rewrites what is bound; ``patching``: auto, device, host. Launching the first nodes moves the
        generator on for all.
        """

    def join_streams(self, before: int, after: int) -> None:
        """Make work on stream ``after`` wait for all work now on stream ``before``."""

    def stream_kept(self) -> AbstractContextManager[None]:
        """Put back which stream is current, and in a backward who chose it."""

    def keep_for(self, tensor: torch.Tensor, stream: int) -> None:
        """Once it is freed, let nobody have a tensor's memory before what is then queued on ``stream`` is done."""

    def memory(self) -> tuple[int, int, int]:
        """(allocated, reserved, in use on the device) in bytes; the last counts everything the device holds."""

    def release_cached(self) -> None:
        """Give memory that the caching allocator keeps and nobody uses back to the device, unless somebody captures."""

    def live_segments(self) -> list[tuple[int, int]]:
        """(address, bytes) of every segment that the caching allocator holds now."""

    @property
    def listen(self) -> Callable[[Callable[[PoolEvent], None]], AbstractContextManager[None]] | None:
        """Tells of every event of the allocator, after one for each segment and block that is there already.

        None where that would slow down every allocation: read the allocator before and after instead.
        """

    @property
    def hear(self) -> Callable[[Callable[[str], None]], AbstractContextManager[None]] | None:
        """Tells of every operation that launches something by itself, in no graph; None where nobody can."""

    @property
    def doubt(self) -> Callable[[Callable[[str, tuple[str, int] | None], None]], AbstractContextManager[None]] | None:
        """Tells of what nobody knows without a GPU, and of the line that depends on it; None where there is one."""

    def knows_address(self, value: int) -> bool:
        """Whether a value is an address of memory that the device can read, the caching allocator's or not.

        Or one that an earlier capture was given, and may have left in a library's cache.
        """

    @property
    def reads_host(self) -> bool:
        """Whether kernels can read any memory of the host, as on coherent platforms (GH200, GB200, MI300A)."""

    def host_addresses(self) -> Callable[[int], bool]:
        """A test for values that are addresses of host memory now and of nothing that the device knows."""

    def random_position(self) -> int:
        """How far the default generator has advanced."""

    def random_state(self) -> Any:
        """The default generator's state, for ``set_random_state``."""

    def set_random_state(self, state: Any) -> None:
        """Bring the default generator back."""

    def mark(self) -> Any:
        """A moment of the current stream, for ``elapsed_us``; None where the device has no time of its own."""

    def elapsed_us(self, first: Any, last: Any) -> float:
        """Microseconds between two moments; waits until the last has passed."""

    def wait(self) -> None:
        """Wait until the device has done what is on the current stream."""

    def discard(self, recording: Recording) -> None:
        """Free a recorded graph that will not be instantiated again."""

    def left_behind(self, suspects: Sequence[Any] = ()) -> tuple[str, ...]:
        """What failed captures have left wrong in this process, in words; ``suspects`` are streams that captured."""

    def repair(self, suspects: Sequence[Any] = (), error: BaseException | None = None) -> None:
        """Put that right, and what failed with ``error``; raises UnsupportedError where only a new process can."""
