"""The twin of ``torch.cuda.CUDAGraph``: begin, end, replay, and the state that a failed capture leaves behind."""

from __future__ import annotations

import gc
import importlib
import struct
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from .allocator import PoolId
from .errors import cuda_error, missing
from .generators import Generator
from .graph import SimNode
from .machine import DEVICE_NAME, machine
from .not_known import not_known
from .rng import DeviceGenerator
from .stream import current_stream, default_stream, set_current
from .under_way import MODES, Capture, forbid_drawing, forbid_unsafe_call, forbidding, open_captures

_unseen = torch_name("_DisableTorchDispatch")
_by_no_default = torch_name("DisableTorchFunction")
_watching = torch_name("_len_torch_dispatch_stack")
_below_autograd = torch_name("_AutoDispatchBelowAutograd")

EMPTY_GRAPH = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)
NO_GRAPH = "You cannot access the raw cudaGraph_t instance"
OWNS_GRAPH = "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
# What torch says where the end of a capture has failed behind the capture itself.
NOT_INSTANTIATED = (
    'keep_graph_ INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/cuda/CUDAGraph.cpp":197, please report a bug to '
    "PyTorch. "
)
BEGIN_IN_CAPTURE = (
    "Cannot register the state during capturing stage. during CUDA graph capture. If you need this call to be "
    "captured, please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
)
REPLAY_IN_CAPTURE = (
    "Cannot prepare for replay during capturing stage. during CUDA graph capture. If you need this call to be "
    "captured, please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
)
WRONG_POOL = (
    "capture_begin(): incompatible function arguments. The following argument types are supported:\n    1. "
    "(self: torch._C._CUDAGraph, pool: object | None = None, capture_error_mode: str = 'global') -> None\n\nInvoked "
    "with: {pool!r}"
)
WRONG_GENERATOR = (
    "register_generator_state(): incompatible function arguments. The following argument types are supported:\n    1. "
    "(self: torch._C._CUDAGraph, arg0: torch._C.Generator) -> None"
)
BOTH_NUMBERS = (
    '!(pool.first && pool.second) INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/cuda/CUDAGraph.cpp":90, please '
    "report a bug to PyTorch. "
)
ENDS_PROCESS = (
    "what comes next: a CUDAGraph goes whose capture was to begin while another one was under way on its stream, and "
    "on a GPU torch ends the process here"
)
FREED = "what lies in memory that this replay takes: it was freed since the capture, and served others"
DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
    "default stream.)"
)


def run_nodes(nodes: Sequence[SimNode], offsets: Mapping[DeviceGenerator, int]) -> None:
    """Launch nodes in recorded order, which is a topological one, after refreshing the generators' device state."""
    m = machine()
    for generator, moved in offsets.items():
        if moved:
            forbid_drawing(generator)
            offset = generator.advance(moved)
            m.arena.write(m.state_of(generator), struct.pack("<QQ", generator.seed, offset))
    arena = m.arena
    with _unseen(), _by_no_default(), _below_autograd():
        m.replaying = True
        try:
            for node in nodes:
                node.run(arena)
        finally:
            m.replaying = False


def _may_be_a_pool(pool: Any) -> bool:
    """Whether C++ takes it for the two numbers of a pool, none of them negative."""
    if pool is None:
        return True
    numbers = isinstance(pool, (tuple, list)) and len(pool) == 2 and all(isinstance(part, int) for part in pool)
    return bool(numbers) and min(pool) >= 0


def _load_dynamo() -> None:
    """Import what torch's meta kernels import at their first call: that keeps all frames below it, and what they hold.

    A thread of its own has no frames of the user's.
    """
    if "torch._dynamo" not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=("torch._dynamo",))
        thread.start()
        thread.join()


def begin(mode: str, pool: PoolId) -> Capture:
    """Start a capture on the current stream."""
    _load_dynamo()
    stream = current_stream()
    if stream.capture is not None:
        raise RuntimeError(BEGIN_IN_CAPTURE)
    if stream.cuda_stream == default_stream().cuda_stream:
        machine().generator.left_in_capture = True  # torch has told it by now
        raise RuntimeError(DEFAULT_STREAM)
    taken = [*(other.pool for other in open_captures()), *(each for *_, each in machine().user_pools)]
    if pool in (*taken, *machine().allocator.left_recording):
        raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
    machine().allocator.retain(pool)
    capture = Capture(mode, stream, pool)
    capture.offsets[machine().generator] = 0
    for other in open_captures():
        other.left.discard(machine().generator)
    stream.capture, stream.tail = capture, ()
    open_captures().append(capture)
    machine().allocator.captures_underway += 1
    return capture


def end(capture: Capture) -> None:
    """End a capture; raises 901, 904 or 908, and then leaves behind what torch leaves."""
    foreign = capture.mode != "relaxed" and capture.thread != threading.get_ident()
    code = 908 if foreign else 901 if capture.invalid else 904 if capture.unjoined() else 0
    capture.leave()
    open_captures().remove(capture)
    if code:
        machine().allocator.left_recording.append(capture.pool)
        capture.kept_by_torch = True
        for generator in capture.offsets:
            generator.left_in_capture = True
        raise cuda_error(code)
    for generator in capture.offsets:
        generator.left_in_capture = False
        for other in open_captures():
            other.left.add(generator)  # it is told that captures are over, however many are under way
    machine().allocator.captures_underway -= 1


def recover() -> None:
    """Put the process right after failed captures: streams, generator and allocator are as if they had not been."""
    for capture in list(open_captures()):
        capture.leave()
        open_captures().remove(capture)
    m = machine()
    m.solver_failed = False
    m.allocator.captures_underway = 0
    for pool in m.allocator.left_recording:
        m.allocator.release(pool)
    m.allocator.left_recording.clear()
    for generator in m.generators:
        generator.left_in_capture = False
    set_current(default_stream())


def show_to_modes(made: bool) -> None:
    """Let modes that watch every operation see what torch does for a graph's generator: two numbers made, or filled."""
    if not _watching():
        return
    for _ in range(2):
        if made:
            torch.ops.aten.empty.memory_format([1], dtype=torch.int64, device=machine().device)
            continue
        with _unseen():
            number = torch.empty(1, dtype=torch.int64, device=machine().device)
        torch.ops.aten.fill_.Scalar(number, 0)


_collecting: list[bool] = []  # whether Python collects garbage now: when it does is nobody's doing


def _collects(phase: str, info: object) -> None:
    _collecting[:] = [True] if phase == "start" else []


gc.callbacks.append(_collects)


class CUDAGraph:
    """The twin of ``torch.cuda.CUDAGraph``."""

    _debug = False

    def __new__(cls, keep_graph: bool = False) -> CUDAGraph:
        """As torch's, which makes it here: a wrong argument is told of this one."""
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self.kept = keep_graph  # a GPU's cannot be looked at otherwise, once its capture has ended
        self._stream = current_stream()  # on which to end, until a capture begins on another
        self._capture: Capture | None = None
        self._ready = False
        self._pool: PoolId | None = None
        self._instantiated = False
        self._unknown = False  # to its generator, which a capture under way does not tell of another graph
        self._registered: list[DeviceGenerator] = []
        self._counted: list[DeviceGenerator] = []  # those that count this graph among theirs

    def register_generator_state(self, *given: Generator, **named: Any) -> None:
        """Let the capture draw from a generator of the user's own."""
        if len(given) != 1 or named:
            raise TypeError(WRONG_GENERATOR)
        generator = given[0]
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"expected a Generator, but got {type(generator).__name__}")
        if not isinstance(generator, Generator):
            not_known(
                "what comes next: a graph is given a generator of the CPU, and on a GPU torch ends the process here"
            )
            raise RuntimeError(f"Expected a '{DEVICE_NAME}' device type for generator but found '{generator.device}'")
        if current_stream().capture is not None:
            raise RuntimeError(BEGIN_IN_CAPTURE)
        self._registered.append(generator.state)
        self._count(generator.state)

    def _count(self, generator: DeviceGenerator) -> None:
        """Tell a generator of this graph: while it has any, it keeps a seed and an offset for them on the device."""
        if generator not in self._counted:
            self._counted.append(generator)
            if not generator.graphs:
                show_to_modes(made=True)
            machine().lend_state(generator, id(self))

    def capture_begin(
        self, pool: PoolId | None = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Start capturing the current stream; ``pool`` shares another graph's memory."""
        if check_input_liveness:
            raise missing("CUDAGraph", "check_input_liveness")
        if self._ready:
            raise RuntimeError(OWNS_GRAPH)
        if not (_may_be_a_pool(pool) and isinstance(capture_error_mode, str)):
            raise TypeError(WRONG_POOL.format(pool=pool))
        if (mode := capture_error_mode) not in MODES:  # looked at before the graph is
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {mode}"
            )
        allocator = machine().allocator
        if current_stream().capture is None:
            self._count(machine().generator)
            for _ in (machine().generator, *self._registered):
                show_to_modes(made=False)
        if pool is not None and all(pool) and current_stream() != default_stream() and current_stream().capture is None:
            machine().generator.left_in_capture = True  # torch has told it by now
            raise RuntimeError(BOTH_NUMBERS)
        pool_id = (int(pool[0]), int(pool[1])) if pool is not None and any(pool) else allocator.new_pool_id()
        if current_stream().capture is None and current_stream() != default_stream():
            self._stream = current_stream()
        self._unknown = current_stream().capture is not None and machine().generator not in self._counted
        self._capture = begin(capture_error_mode, pool_id)
        self._capture.offsets.update(dict.fromkeys(self._registered, 0))
        self._stream = self._capture.origin
        self._pool = pool_id

    def capture_end(self) -> None:
        """Stop capturing; raises 901 if the capture was invalidated, 904 if a forked stream was not joined."""
        stream = current_stream()
        if stream != self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if stream.capture is None:
            raise cuda_error(401)
        end(stream.capture)
        if self._capture is None or not self._capture.ended:  # it was another graph's
            raise RuntimeError("capture_end() called before capture_begin().")
        self._ready = True
        if not self._capture.nodes:
            warnings.warn(EMPTY_GRAPH, UserWarning, stacklevel=2)
        if not self.kept:
            forbid_unsafe_call()  # cudaGraphInstantiate, while another capture is under way
            self._instantiated = True

    def instantiate(self) -> None:
        """Make what is launched, where the graph was kept; replays run the recorded nodes themselves."""
        if not self._ready:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if not self.kept:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        forbid_unsafe_call()
        self._instantiated = True

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        if not self._ready or self._capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if not (self._instantiated or self.kept):
            raise RuntimeError(NOT_INSTANTIATED)
        self._instantiated = True
        if current_stream().capture is not None:  # the generator's numbers are set up on the host
            raise RuntimeError(REPLAY_IN_CAPTURE)
        for moved in self._capture.offsets.values():
            if moved:
                show_to_modes(made=False)
        if machine().is_anothers(self._capture.touched):
            not_known(FREED)
        run_nodes(self._capture.nodes, self._capture.offsets)

    def reset(self) -> None:
        """Drop the graph; its pool's unused memory goes back at the next ``empty_cache``.

        CUDA destroys an executable, which a capture may forbid: that is spoiled then, and a warning alone tells of it.
        """
        if self._drop():
            warnings.warn("CUDA warning: operation not permitted when stream is capturing", UserWarning, stacklevel=2)

    def _drop(self) -> bool:
        """Drop the graph; whether that has spoiled a capture."""
        if self._capture is not None and not self._capture.ended:
            return False
        if self._pool is not None and not (self._capture is not None and self._capture.kept_by_torch):
            machine().allocator.release(self._pool)
        forbids = forbidding() if self._instantiated and not _collecting else None
        if forbids is not None:
            forbids.invalid = True
        self._capture, self._pool, self._ready, self._instantiated = None, None, False, False
        return forbids is not None

    def pool(self) -> PoolId:
        """The id of the pool that this graph allocated from."""
        if not self._ready or self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def enable_debug_mode(self) -> None:
        """Let ``debug_dump`` write, for every graph from here on."""
        CUDAGraph._debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the nodes of a graph that was kept as DOT; it warns as torch does, and of the rest keeps nothing."""
        if not (CUDAGraph._debug or self.kept):
            warnings.warn("CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()", stacklevel=2)
            return
        warnings.warn("DEBUG: calling debug_dump()", stacklevel=2)
        if not (self.kept and self._ready):
            return
        warnings.warn(f"DEBUG: calling cudaGraphDebugDotPrint() with {debug_path}", stacklevel=2)
        nodes = self.nodes()
        lines = [f'  n{i} [label="{node.kind}: {node.name}"];' for i, node in enumerate(nodes)]
        lines += [f"  n{before} -> n{i};" for i, node in enumerate(nodes) for before in node.deps]
        Path(debug_path).write_text("\n".join(["digraph simulated {", *lines, "}", ""]), encoding="utf-8")

    def raw_cuda_graph(self) -> int:
        """Refused: there is no cudaGraph_t; torch's own checks come first."""
        if not self.kept:
            raise RuntimeError(f"{NO_GRAPH} unless CUDAGraph was initialized with keep_graph=true")
        if not self._ready:
            raise RuntimeError(f"{NO_GRAPH} until capture_end() has been called")
        raise missing("CUDAGraph", "raw_cuda_graph")

    def raw_cuda_graph_exec(self) -> int:
        """Refused: there is no cudaGraphExec_t; torch's own check comes first."""
        if not self._instantiated:
            raise RuntimeError("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        raise missing("CUDAGraph", "raw_cuda_graph_exec")

    def nodes(self) -> tuple[SimNode, ...]:
        """The recorded nodes, in order (the simulator's own addition)."""
        return tuple(self._capture.nodes) if self._capture is not None else ()

    def gone(self) -> list[tuple[int, tuple[str, int] | None]]:
        """Memory that it reads or writes, and that was freed since, with the lines that do (an addition, too)."""
        return machine().gone(self._capture.touched) if self._capture is not None and self._ready else []

    def touched(self) -> list[int]:
        """Addresses of all memory that it reads or writes and that lies in no pool of graphs (an addition, too)."""
        return [*self._capture.touched] if self._capture is not None and self._ready else []

    def pooled(self) -> list[tuple[int, int, int, bool]]:
        """What it touches in pools of graphs: which, address, size, and whether it makes that (an addition, too)."""
        known = self._capture.pooled.values() if self._capture is not None and self._ready else ()
        return [(id(each.owner), each.address, each.size, each.made) for each in known if each.made or each.read]

    def __getattr__(self, name: str) -> Any:
        if not hasattr(torch.cuda.CUDAGraph, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        raise missing("CUDAGraph", name)

    _ends = staticmethod(sys.is_finalizing)  # kept, as names of the module may be gone then

    def __del__(self) -> None:
        if "_counted" in vars(self) and not self._ends():  # made to the end
            if self._unknown:
                not_known(ENDS_PROCESS)
            self._drop()
            for generator in self._counted:
                machine().take_state(generator, id(self))

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("cannot pickle 'CUDAGraph' object")

    def __repr__(self) -> str:
        return f"CUDAGraph(simulated, {len(self.nodes())} nodes)"
