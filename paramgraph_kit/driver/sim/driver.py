"""``SimDriver``: the simulated machine behind the interface that every layer above uses."""

from __future__ import annotations

import datetime
import platform
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.driver.api import TIMED_EVENT, Binding, Phantom, RawNode, Recording
from paramgraph_kit.driver.host_memory import host_memory
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import DriverCallError, RefusedError, UnsupportedError, cause_chain
from paramgraph_kit.trace.model import NodeKind, Origin, PoolAction, PoolEvent, Reason, Source

from . import aftermath
from .arena import GRANULE
from .capture import CUDAGraph, begin, end, run_nodes
from .device import register
from .errors import out_of_memory
from .graph import HOST_COPIES, SimNode
from .machine import machine
from .not_known import Tell, listening
from .phantom import SimPhantom
from .stream import Event, Stream, choice, current_stream, restore, set_current, stream_of
from .under_way import open_captures

LOWERED = (NodeKind.MEMCPY, NodeKind.MEMSET)


class SimExecutable:
    """An instantiated graph: its own copy of every parameter buffer, and which words to rewrite."""

    def __init__(
        self, nodes: Sequence[SimNode], bindings: Sequence[Binding], slots: int, random_increment: int
    ) -> None:
        self.patching = "simulated"
        self.patch: Callable[[Sequence[int]], None] = self._patch
        self.launch: Callable[[int], None] = self._launch
        self._nodes = [node.copy() for node in nodes]
        self._slots = slots
        self._random = random_increment
        self._destroyed = False
        self._words: list[tuple[bytearray, int, int, int]] = []
        for b in bindings:
            parameters = self._nodes[b.node].parameters
            if b.offset % 8 or not 0 <= b.offset <= len(parameters) - 8 or not 0 <= b.slot < slots:
                raise ValueError(f"{b} does not name an aligned word of its node and one of {slots} slots")
            self._words.append((parameters, b.offset, b.slot, b.delta))
        self.device_bytes = sum(len(node.parameters) for node in self._nodes)
        self._pack = struct.Struct("<Q").pack_into

    def _patch(self, addresses: Sequence[int]) -> None:
        """Write one address per slot to every bound word."""
        if len(addresses) != self._slots:
            raise ValueError(f"this executable has {self._slots} slots, but {len(addresses)} addresses came")
        pack = self._pack
        for parameters, offset, slot, delta in self._words:
            pack(parameters, offset, addresses[slot] + delta)

    def _launch(self, stream: int) -> None:
        """Replay on a stream; raises 900 if it captures, 700 if a node reads what is not device memory."""
        if self._destroyed:
            raise DriverCallError("cuGraphLaunch", 1, "the executable is destroyed")
        capture = stream_of(stream).capture
        if capture is not None:
            raise capture.fail(900)
        run_nodes(self._nodes, {machine().generator: self._random})

    def destroy(self) -> None:
        """Free the executable."""
        self._destroyed = True
        self._nodes, self._words, self.device_bytes = [], [], 0

    def __repr__(self) -> str:
        return f"SimExecutable({len(self._nodes)} nodes, {len(self._words)} words, {self._slots} slots)"


def _current_stream() -> int:
    return current_stream().cuda_stream


def refuse_node(node: SimNode) -> None:
    """Raise RefusedError for a node that cannot be given new addresses, with the GPU driver's reasons."""
    if node.name.startswith(HOST_COPIES):
        raise RefusedError(Reason("host-memcpy", "a copy from or to host memory stays at its captured address"))
    if node.kind not in (NodeKind.KERNEL, *LOWERED):
        name = str(node.kind)
        raise RefusedError(Reason("opaque-node", f"a {name} node cannot be given new addresses", operation=name))


def _raw(node: SimNode, position: int) -> RawNode:
    parameters = bytes(node.parameters)
    return RawNode(node.kind, node.name, parameters, node.deps, position=position, handle=node, origin=node.origin)


class SimDriver:
    """The simulated device; ``reuse=False`` keeps phantom addresses from being used twice within a capture."""

    name = "sim"
    event_type: type = Event

    def __init__(self, reuse: bool = True) -> None:
        self.device = register()
        self._machine = machine()
        self._reuse = reuse
        self._stream: Stream | None = None
        self.empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = (
            self._machine.empty_strided
        )
        self.reinterpret: Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...], int], torch.Tensor] = torch_name(
            "_reinterpret_tensor"
        )
        self.address_of: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
        self.allocate: Callable[[int, int], int] = self._allocate
        self.current_stream: Callable[[], int] = _current_stream
        self.library_state: Callable[[], tuple[Any, ...]] = tuple
        self.is_capturing: Callable[[], bool] = lambda: current_stream().capture is not None
        self.free: Callable[[int], None] = self._machine.allocator.free

    def _allocate(self, nbytes: int, stream: int) -> int:
        """A block of the caching allocator, to give back with ``free``."""
        address = self._machine.allocator.alloc(max(nbytes, 1), stream)
        if address is None:
            stats = self._machine.allocator.stats
            raise out_of_memory(nbytes, self._machine.arena.capacity, stats.reserved, stats.allocated)
        return address

    def source(self) -> Source:
        """This machine, labelled as simulated."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return Source(Origin.SIMULATED, "simulated device", "-", torch.__version__, platform.python_version(), today)

    def storage_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        """(address, bytes) of the storage that a tensor views."""
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor over foreign memory."""
        return self._machine.tensor_at(address, nbytes, size, stride, offset, dtype)

    @contextmanager
    def phantom(self, side: int) -> Iterator[SimPhantom]:
        """Phantom memory for capture side 0 or 1."""
        if side not in (0, 1):
            raise ValueError(f"there are two capture sides, 0 and 1, not {side}")
        found = SimPhantom(side, self._reuse)
        try:
            yield found
        except BaseException as error:
            for each in cause_chain(error):  # what went wrong must not keep tensors or a backward graph of the capture
                traceback.clear_frames(each.__traceback__)
            raise
        finally:
            found.close()

    def record(
        self, run: Callable[[], Any], phantom: Phantom, *, survey: bool = True, eager: bool = False
    ) -> Recording:
        """Run under stream capture on phantom memory; executes nothing. Allocations are known with no survey."""
        if not isinstance(phantom, SimPhantom) or not phantom.open:
            raise UnsupportedError("record() takes an open phantom of this driver's own phantom()")
        m = self._machine
        if open_captures():
            raise RefusedError(Reason("capture-under-way", "another capture is under way in this process"))
        before = choice()
        self._stream = self._stream or Stream(priority=-2)  # none that the user gets again
        was_left = m.generator.left_in_capture
        underway = m.allocator.captures_underway
        set_current(self._stream)
        pool = m.allocator.new_pool_id()
        capture = done = None
        try:
            capture = begin("thread_local", pool)
            capture.phantom = phantom
            phantom.capture = capture
            try:
                result = run()
            finally:
                set_current(self._stream)
                done, capture = capture, None
                end_quietly = None
                try:
                    end(done)
                except RuntimeError as error:
                    end_quietly = error
            if end_quietly is not None:
                raise end_quietly
        finally:
            if capture is not None:
                capture.leave()
                open_captures().remove(capture)
            phantom.capture = None
            m.allocator.captures_underway = underway
            m.generator.left_in_capture = was_left
            restore(before)
            events = done.settle() if done is not None else ()
        phantom.close()
        for node in done.nodes:
            refuse_node(node)
        if any(event.enable_timing for event in events):
            raise RefusedError(TIMED_EVENT)
        nodes = [
            replace(
                _raw(node, i),
                kind=NodeKind.KERNEL if node.kind in LOWERED else node.kind,
                lowered_from=node.kind if node.kind in LOWERED else None,
            )
            for i, node in enumerate(done.nodes)
        ]
        return Recording(
            nodes=nodes,
            allocations=phantom.allocations,
            result=result,
            graph=done,
            random_increment=done.offsets[m.generator],
            static_ranges=list(m.static_ranges) if done.random else [],
            streams=tuple(stream.cuda_stream for stream in done.streams if stream != done.origin),
            events=events,
        )

    @staticmethod
    def recorded_nodes() -> int:
        """How many nodes the capture of the current stream has so far."""
        capture = current_stream().capture
        return len(capture.nodes) if capture is not None else 0

    @staticmethod
    def describe(graph: Any) -> list[RawNode]:
        """The nodes of a ``CUDAGraph`` that somebody else captured."""
        if not isinstance(graph, CUDAGraph) or not graph.nodes():
            raise UnsupportedError("this graph has captured nothing that can be shown: capture into it first")
        return [_raw(node, i) for i, node in enumerate(graph.nodes())]

    @staticmethod
    def freed(graph: Any) -> list[tuple[int, tuple[str, int] | None]]:
        """Memory from outside that a graph touches, and that was freed since."""
        return graph.gone() if isinstance(graph, CUDAGraph) else []

    @staticmethod
    def touched(graph: Any) -> list[int]:
        """All memory from outside that a graph touches."""
        return graph.touched() if isinstance(graph, CUDAGraph) else []

    @staticmethod
    def pooled(graph: Any) -> list[tuple[int, int, int, bool]]:
        """All memory in pools of graphs that a graph touches."""
        return graph.pooled() if isinstance(graph, CUDAGraph) else []

    @staticmethod
    def pool_number(tensor: torch.Tensor) -> int:
        """The number that ``pooled`` has for a tensor's memory."""
        return machine().number_of(tensor)

    def instantiate(
        self, recording: Recording, nodes: range, bindings: Sequence[Binding], slots: int, *, patching: str
    ) -> SimExecutable:
        """An executable whose bound words ``patch`` rewrites."""
        if patching not in ("auto", "device", "host", "simulated"):
            raise ValueError(f"patching is auto, device or host, not {patching!r}")
        chosen = [recording.nodes[n].handle for n in nodes]
        for b in bindings:
            node = recording.nodes[b.node]
            if node.handle.addressed <= b.offset < len(node.parameters):
                place = f"bytes {b.offset}..{b.offset + 8} of a kernel's parameters"
                text = (
                    f"{place} are an address that was given as a number: the simulator computes with the captured one"
                )
                raise RefusedError(Reason("unexplained-word", text, operation=node.name))
        moved = [replace(b, node=b.node - nodes.start) for b in bindings]
        return SimExecutable(chosen, moved, slots, 0 if nodes.start else recording.random_increment)

    def join_streams(self, before: int, after: int) -> None:
        """Make work on stream ``after`` wait for all work now on stream ``before``."""
        if before != after:
            stream_of(after).wait_stream(stream_of(before))

    @staticmethod
    @contextmanager
    def stream_kept() -> Iterator[None]:
        """Put back which stream is current, and that autograd's thread has chosen none."""
        before = choice()
        try:
            yield
        finally:
            restore(before)

    @staticmethod
    def keep_for(tensor: torch.Tensor, stream: int) -> None:
        """Nothing: work that was queued is done."""

    def memory(self) -> tuple[int, int, int]:
        """(allocated, reserved, in use on the device) in bytes."""
        stats = self._machine.allocator.stats
        return stats.allocated, stats.reserved, self._machine.arena.mapped

    def release_cached(self) -> None:
        """Give unused segments back."""
        self._machine.allocator.empty_cache()

    def live_segments(self) -> list[tuple[int, int]]:
        """(address, bytes) of every segment of the allocator, and of what the device holds beside it."""
        m = self._machine
        pools = list(m.allocator.pools.values())
        return [(m.state_of(m.generator), GRANULE)] + [(s.address, s.size) for p in pools for s in p.segments.values()]

    @contextmanager
    def listen(self, tell: Callable[[PoolEvent], None]) -> Iterator[None]:
        """Tell of every event of the allocator, after one event for each segment and block that is there already."""
        allocator = self._machine.allocator
        for pool in list(allocator.pools.values()):
            for segment in list(pool.segments.values()):
                tell(PoolEvent(0, pool.name, PoolAction.SEGMENT_ALLOC, segment.address, segment.size))
                for block in segment.blocks():
                    if block.live:
                        tell(PoolEvent(0, pool.name, PoolAction.ALLOC, block.address, block.size))
        allocator.listeners.append(tell)
        try:
            yield
        finally:
            allocator.listeners.remove(tell)

    @contextmanager
    def hear(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Tell of every operation that launches something by itself, in no graph."""
        self._machine.hearing.append(tell)
        try:
            yield
        finally:
            self._machine.hearing.remove(tell)

    @staticmethod
    def doubt(tell: Tell) -> AbstractContextManager[None]:
        """Tell of what nobody knows without a GPU, and of the line that depends on it."""
        return listening(tell)

    def knows_address(self, value: int) -> bool:
        """Whether the simulated device has memory at an address."""
        return self._machine.arena.is_mapped(value)

    @property
    def reads_host(self) -> bool:
        """Whether this is a coherent machine."""
        return self._machine.arena.coherent

    def host_addresses(self) -> Callable[[int], bool]:
        """A test for the host's addresses on a coherent machine; on others nothing packed here can be one."""
        arena = self._machine.arena
        on_host = host_memory() if arena.coherent else None
        return lambda value: on_host is not None and on_host(value) and not arena.owns(value)

    def random_position(self) -> int:
        """The generator's offset."""
        return self._machine.generator.offset

    def random_state(self) -> Any:
        """The generator's seed and offset."""
        return self._machine.generator.state()

    def set_random_state(self, state: Any) -> None:
        """Bring the generator back."""
        self._machine.generator.set_state(state)

    @staticmethod
    def mark() -> None:
        """Nothing: what is simulated takes no time that means anything."""

    @staticmethod
    def elapsed_us(first: Any, last: Any) -> float:
        """No time has passed."""
        return 0.0

    @staticmethod
    def wait() -> None:
        """Nothing: here work is done when it is launched."""

    @staticmethod
    def discard(recording: Recording) -> None:
        """Drop a recorded graph."""
        recording.graph = None

    @staticmethod
    def left_behind(suspects: Sequence[Any] = ()) -> tuple[str, ...]:
        """What failed captures have left wrong in this process."""
        return aftermath.left_behind(suspects)

    @staticmethod
    def repair(suspects: Sequence[Any] = (), error: BaseException | None = None) -> None:
        """Put that right; a library keeps nothing of an error here."""
        aftermath.repair(suspects)

    def __repr__(self) -> str:
        return f"SimDriver({self._machine.arena.capacity >> 20} MiB)"
