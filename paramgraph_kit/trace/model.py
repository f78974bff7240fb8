"""What every layer shares: captures, partitions, launches, failures and pool events as plain data.

Nothing here imports torch or CUDA, so that a trace can be read, drawn and tested anywhere.
Addresses and sizes are bytes; positions (``born``, ``died``) count nodes recorded so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from paramgraph_kit.trace.comparing import compare
from paramgraph_kit.trace.proof import Proof as Proof
from paramgraph_kit.trace.reason import Frame as Frame
from paramgraph_kit.trace.reason import Reason as Reason


class Origin(StrEnum):
    """How the facts of a trace came to be; shown wherever they are shown."""

    LIVE = "live"  # measured on this machine's GPU, in this process
    SIMULATED = "simulated"  # produced by driver/sim
    RECORDED = "recorded"  # loaded from a file that a GPU run wrote


@dataclass(frozen=True, slots=True)
class Source:
    """The machine and the versions behind a trace."""

    origin: Origin
    device: str  # "NVIDIA H200", or "simulated device"
    driver: str  # CUDA driver version, or "-"
    torch: str
    python: str
    date: str  # ISO date, UTC
    from_file: bool = False  # set by load, never stored

    def label(self) -> str:
        """One line that says where the numbers come from, and whether they are a recording."""
        where = self.device if self.driver == "-" else f"{self.device}, driver {self.driver}"
        then = " (live when recorded)" if self.origin is Origin.RECORDED else " (loaded from a recording)"
        return f"{self.origin}: {where}, torch {self.torch}, {self.date}" + (then if self.from_file else "")


class NodeKind(StrEnum):
    """Every node type of a CUDA graph (CUgraphNodeType)."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    HOST = "host"
    CHILD_GRAPH = "child graph"
    EMPTY = "empty"
    EVENT_WAIT = "event wait"
    EVENT_RECORD = "event record"
    SEMAPHORE_SIGNAL = "semaphore signal"
    SEMAPHORE_WAIT = "semaphore wait"
    MEM_ALLOC = "mem alloc"
    MEM_FREE = "mem free"
    BATCH_MEM_OP = "batch mem op"
    CONDITIONAL = "conditional"


class WordKind(StrEnum):
    """What an aligned 8-byte piece of a parameter buffer was found to be."""

    POINTER = "pointer"  # lies in phantom memory in both captures, same allocation and offset
    SCALAR = "scalar"  # the same bytes in both captures
    UNKNOWN = "unknown"  # differs, and nothing explains how: the graph is refused


@dataclass(frozen=True, slots=True)
class Word:
    """One aligned 8-byte piece of a node's parameters, its class and the evidence for it."""

    offset: int  # bytes into the packed parameter buffer
    kind: WordKind
    allocation: int | None = None  # index into Capture.allocations, for pointers
    delta: int = 0  # bytes into that allocation
    value: int | None = None  # the bytes as an integer, for scalars
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a captured graph, in the order of recording."""

    index: int
    kind: NodeKind
    name: str  # kernel name, or the operation for other kinds
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared_bytes: int = 0
    lane: int = 0  # 0 for the capture's own stream, 1.. for branches
    parameter_bytes: int = 0
    words: tuple[Word, ...] = ()
    frame: Frame | None = None
    lowered_from: NodeKind | None = None  # memset and memcpy nodes become kernels
    module: str = ""  # path of the module that ran it: "blocks.3.up"
    source: str = ""  # what it runs: the text of a Triton kernel, or the operation on the simulated device


class Role(StrEnum):
    """Who owns an allocation at launch."""

    INPUT = "input"
    OUTPUT = "output"
    WORKSPACE = "workspace"
    STATIC = "static"  # constants and generator state: the same address at every launch


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that the captured nodes address, with its lifetime in node positions."""

    index: int
    role: Role
    size: int
    slot: int | None = None  # which launch-time address supplies it; None if it is never addressed
    offset: int = 0  # bytes into the slot (non-zero in the workspace)
    born: int = 0  # first node position that may use it
    died: int | None = None  # first position at which its bytes are free again; None: still live
    name: str = ""  # what the user calls it: "blocks.3.up.weight"
    shape: tuple[int, ...] | None = None  # of the tensor on it, where that is known
    dtype: str = ""  # "f32"
    frame: Frame | None = None  # the line that allocates it, where that is known


@dataclass(frozen=True, slots=True)
class Capture:
    """One captured graph: nodes, edges, words and the memory they address."""

    id: int
    partition: int
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]  # (before, after) node indices
    allocations: tuple[Allocation, ...]
    workspace_bytes: int = 0
    graph_bytes: int = 0  # device memory held by the executable graph
    patching: str = ""  # "device", "host", "simulated"

    @property
    def words_patched(self) -> int:
        """How many words one launch at new addresses writes."""
        return sum(w.kind is WordKind.POINTER for n in self.nodes for w in n.words)


EAGER = "eager"  # the graph of a partition that is in none: a line that runs eager between what is compiled


@dataclass(frozen=True, slots=True)
class Partition:
    """A region of a compiled FX graph: launched as a CUDA graph, or not and why."""

    id: int
    graph: str  # which compiled graph: "forward 0", "backward 0", "inference 1"
    graphed: bool
    operations: tuple[str, ...] = ()  # FX operations, in order
    kernels: int = 0  # kernels launched from here in one call
    reasons: tuple[Reason, ...] = ()
    position: int = -1  # among all that one call of the graph does, in order; -1 where nobody knows


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of an executable graph."""

    capture: int
    call: int  # 0-based, per executable
    moved: int  # slots whose address changed since the last launch
    words_patched: int
    bytes_copied: int = 0
    cpu_us: float | None = None
    start_us: float | None = None  # since the recording began, on the host's clock; None where time means nothing
    addresses: tuple[int, ...] = ()  # by slot, 0 where it writes none; empty where none has moved or none were kept
    gpu_start_us: float | None = None  # since the first launch that was timed, on the device's clock
    gpu_us: float | None = None  # from there until its last node has ended; None where nobody has measured it
    event: int | None = None  # time of the last event of the allocator before it; None where nobody has heard of any


@dataclass(frozen=True, slots=True)
class Failure:
    """A capture that failed, with its cause as far as it is known."""

    code: str
    title: str
    message: str  # what CUDA or torch said
    frame: Frame | None = None
    cause: str = ""
    fix: str = ""


class PoolAction(StrEnum):
    """What happened in the caching allocator."""

    ALLOC = "alloc"
    FREE = "free"
    SEGMENT_ALLOC = "segment alloc"
    SEGMENT_FREE = "segment free"


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One event of the caching allocator; ``pool`` is "default" or a private pool's name."""

    time: int  # monotone counter within the trace; events of one snapshot share it, their order is not known
    pool: str
    action: PoolAction
    address: int
    size: int
    call: int | None = None  # which call of the workload, where the recorder knows
    frame: Frame | None = None  # the line that asked for it, where the recorder knows


@dataclass(slots=True, weakref_slot=True)
class Trace:
    """Everything that was recorded, in order."""

    source: Source
    title: str = ""
    partitions: list[Partition] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    pool_events: list[PoolEvent] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)

    def compare(self, label: str, got: Any, expected: Any) -> Proof:
        """Compare numbers bit for bit now, keep the result in ``proofs``, and return it.

        Args:
            label: what is compared with what: "replay against eager".
            got: a tensor, an array or a number, or lists, tuples and dicts of them; tensors on a device are read back.
            expected: the same, of the same shapes and types.

        Raises:
            ParamgraphError: the two cannot be compared: other shapes, types or lengths.

        Examples:
            >>> trace = Trace(Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20"))
            >>> trace.compare("fixed against eager", [1.0, 2.0], [1.0, 2.5]).text()
            '1 of 2 values differ, by 0.5 at most'
        """
        proof = compare(label, got, expected)
        self.proofs.append(proof)
        return proof

    def __repr__(self) -> str:
        return (
            f"Trace({self.title!r}, {self.source.origin}: {len(self.partitions)} partitions, "
            f"{len(self.captures)} captures, {len(self.launches)} launches, "
            f"{len(self.failures)} failures, {len(self.pool_events)} pool events)"
        )
