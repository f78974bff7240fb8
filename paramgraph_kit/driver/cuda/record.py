"""Stream capture on phantom memory: what was recorded, and which memory was live when.

The caching allocator reuses freed blocks within one capture, so one address can mean several allocations. Each
allocation is therefore labelled with how many nodes existed when it was made and when it was freed: a profile
hook keeps the label current, the allocator's own history keeps the order.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from cuda.bindings import driver as cu

from paramgraph_kit.driver.api import RawAllocation, Recording
from paramgraph_kit.driver.backward import at_each_node
from paramgraph_kit.driver.cuda import nodes as graph_nodes
from paramgraph_kit.driver.cuda.calls import Owned, call, library
from paramgraph_kit.driver.cuda.forks import Forks, captures, known_streams
from paramgraph_kit.driver.cuda.phantom import PhantomRange, phantom_range
from paramgraph_kit.driver.cuda.recover import wake_solver
from paramgraph_kit.driver.profiling import set_profile
from paramgraph_kit.driver.recorders import Recorders
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import RefusedError, cause_chain
from paramgraph_kit.trace.model import Reason

_tags = itertools.count()


class CudaPhantom:
    """One capture's phantom memory: a range and the pool that serves allocations from it."""

    def __init__(self, device: int, side: int) -> None:
        self.range: PhantomRange = phantom_range(device, side)
        self.pool: Any = None

    def __enter__(self) -> CudaPhantom:
        self.range.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        for each in cause_chain(error):  # what went wrong must not keep a graph or tensors on this memory
            traceback.clear_frames(each.__traceback__)
        torch_name("_cuda_clearCublasWorkspaces")()
        _free_deferred(self.range.device)
        self.pool = None  # its segments leave the allocator's statistics here
        self.range.__exit__(kind, error, trace)

    @property
    def starts(self) -> Sequence[int]:
        """Of all that was handed out, in order."""
        return self.range.layout.starts

    def reserve(self, nbytes: int, residue: int = 0) -> int:
        """An address for an input."""
        return self.range.reserve(nbytes, residue)

    def contains(self, address: int) -> bool:
        """Whether an address is phantom memory of this side."""
        return self.range.contains(address)


def record(
    run: Callable[[], Any],
    phantom: CudaPhantom,
    stream: torch.cuda.Stream,
    device: int,
    *,
    survey: bool,
    eager: bool,
) -> Recording:
    """Capture ``run`` on ``stream``, its memory served from ``phantom``; nothing executes.

    With ``survey`` a first pass finds out which memory is live when. It is apart from the capture that is kept,
    because watching leaves traces (labels, time stamps) in bytes of kernel parameters that nobody initialises.
    """
    allocations: list[RawAllocation] = []
    history = _History()
    if survey:
        allocations = _survey(run, phantom, stream, device, history)
        if eager:  # hooks show more, but might change what they look at
            finer = _survey(run, phantom, stream, device, _History(each_node=True))
            if [(a.address, a.size) for a in finer] == [(a.address, a.size) for a in allocations]:
                allocations = finer
    graph, result, forks = _capture(run, phantom, stream, device, lambda _: nullcontext())
    events = forks.kept()
    graph_nodes.check_kinds(cu.CUgraph(graph.raw_cuda_graph()))  # some kinds cannot even be cloned
    owned = Owned(call(cu.cuGraphClone, cu.CUgraph(graph.raw_cuda_graph())), cu.cuGraphDestroy)
    graph.reset()  # its hold on the pool ends here: the clone is ours
    nodes = graph_nodes.read(owned.raw)
    if eager and history.recorders.count == len(nodes):  # other code's lines are known from its text
        for node in nodes:
            node.origin = history.recorders.at(node.position)
    return Recording(nodes, allocations, result, owned, streams=forks.streams, events=events)


def _survey(
    run: Callable[[], Any], phantom: CudaPhantom, stream: torch.cuda.Stream, device: int, history: _History
) -> list[RawAllocation]:
    """Capture and forget: what was allocated, and when."""
    mark = phantom.range.layout.mark()
    with history:
        graph, result, _ = _capture(run, phantom, stream, device, history.labels)
        found = history.allocations(phantom, device)  # while the results live: they never died
        graph.reset()
        del result
    torch_name("_cuda_clearCublasWorkspaces")()
    _free_deferred(device)
    phantom.pool = None
    phantom.range.layout.rewind(mark)
    return found


def _capture(
    run: Callable[[], Any],
    phantom: CudaPhantom,
    stream: torch.cuda.Stream,
    device: int,
    watch: Callable[[int], AbstractContextManager[None]],
) -> tuple[torch.cuda.CUDAGraph, Any, Forks]:
    # A workspace cached by an earlier capture would have the same address on both sides and point nowhere.
    torch_name("_cuda_clearCublasWorkspaces")()
    # no_split: every allocation is a segment of its own, with our gaps around it.
    phantom.pool = torch.cuda.MemPool(phantom.range.allocator, no_split=True)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream.wait_stream(torch.cuda.current_stream(device))
    forks = Forks(device, stream)
    with forks, torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool=phantom.pool.id, capture_error_mode="thread_local")
            with forks.watched(), watch(stream.cuda_stream):
                result = run()
            forks.look()
        except BaseException as error:
            _abandon(graph, phantom, device, error)
            if phantom.range.exhausted:
                reason = Reason("phantom-exhausted", "one call needs more address space than is set aside")
                raise RefusedError(reason) from error
            raise
        try:
            graph.capture_end()
        except BaseException as error:
            _abandon(graph, phantom, device, error)
            raise
    return graph, result, forks


def _free_deferred(device: int) -> None:
    """Free what is still to be freed of a capture, while its pool is there to take it.

    A block that several streams use (autograd says so of gradients that cross streams) is freed when an event on each
    has happened, and during a capture the allocator puts even the events off.
    """
    if any(captures(stream.cuda_stream) for stream in known_streams(device)):  # somebody else's goes on
        return
    torch.empty(1, device=f"cuda:{device}")  # the next allocation records the events
    torch.cuda.synchronize(device)
    torch.empty(1, device=f"cuda:{device}")  # and the one after it finds that they have happened


def _abandon(graph: torch.cuda.CUDAGraph, phantom: CudaPhantom, device: int, error: BaseException) -> None:
    """After a failed capture: end it, give the pool back, and bring the generator back."""
    ended = False
    with _ignored():
        graph.capture_end()
        ended = True
    if not ended:  # an invalidated capture leaves the pool routed to it and counted as used
        with _ignored():
            torch_name("_cuda_endAllocateToPool")(device, phantom.pool.id)
        with _ignored():
            torch_name("_cuda_releasePool")(device, phantom.pool.id)
    with _ignored():
        graph.reset()
    # The frames of the failed call hold tensors on memory that is about to go.
    traceback.clear_frames(error.__traceback__)
    wake_solver(device, error)
    # Only the end of a good capture tells the generator that no capture is under way.
    repair = torch.cuda.CUDAGraph()
    with _ignored():
        repair.capture_begin(capture_error_mode="thread_local")
        torch_name("_sleep")(1)
        repair.capture_end()


def _ignored() -> AbstractContextManager[None]:
    return suppress(RuntimeError)


class _History:
    """The allocator's event history over one capture, every event labelled with the node count."""

    def __init__(self, each_node: bool = False) -> None:
        self._each_node = each_node  # of backward passes
        self._tag = f"pgk{next(_tags)}:"
        self._labels = [0]
        self.recorders = Recorders()
        self._was_on = False

    def __enter__(self) -> _History:
        self._was_on = torch_name("_cuda_isHistoryEnabled")()
        self._metadata = torch_name("_cuda_getMemoryMetadata")()
        if not self._was_on:
            torch_name("_record_memory_history")("all", context=None, stacks="python")
        return self

    def __exit__(self, *_: object) -> None:
        torch_name("_cuda_setMemoryMetadata")(self._metadata)
        if not self._was_on:
            torch_name("_record_memory_history")(None)

    @contextmanager
    def labels(self, stream: int) -> Iterator[None]:
        """Label allocations with how many nodes the capture under way on ``stream`` has so far.

        Between two calls of Inductor's generated code the count is exact. Inside one C call, or one operator of
        other Python code, it may grow unseen: what is made or freed there gets the count at entry and a "+".
        """
        graph = ctypes.c_void_p(int(call(cu.cuStreamGetCaptureInfo, cu.CUstream(stream))[2]))
        count = ctypes.c_size_t(0)
        get_nodes, reference = library().cuGraphGetNodes, ctypes.byref(count)
        set_label, tag, labels = torch_name("_cuda_setMemoryMetadata"), self._tag, self._labels
        generated = torch_name("cache_dir")()
        unseen, note = [True], self.recorders.note
        seen = f"{tag}0+"

        def hook(frame: types.FrameType, event: str, _argument: object) -> None:
            nonlocal seen
            get_nodes(graph, None, reference)
            note(frame, event, count.value)
            if event == "c_call":
                unseen.append(True)
            elif event == "call":
                unseen.append(not frame.f_code.co_filename.startswith(generated))
            elif len(unseen) > 1:
                unseen.pop()
            label = f"{tag}{count.value}+" if unseen[-1] else f"{tag}{count.value}"
            if label != seen:
                seen = label
                labels.append(count.value)
                set_label(label)

        set_label(seen)
        before = sys.getprofile()
        try:
            with at_each_node(lambda: None) if self._each_node else nullcontext():
                sys.setprofile(hook)
                yield
        finally:
            set_profile(before)
            get_nodes(graph, None, reference)
            labels.append(count.value)
            set_label(f"{tag}{count.value}")

    def allocations(self, phantom: CudaPhantom, device: int) -> list[RawAllocation]:
        """Every allocation made in phantom memory, oldest first, with the positions that bound its life."""
        events = torch_name("_cuda_memorySnapshot")(None)["device_traces"][device]
        found: list[RawAllocation] = []
        live: dict[int, RawAllocation] = {}
        after = dict(itertools.pairwise(sorted(set(self._labels))))
        for event in events:
            address, label = event["addr"], event.get("user_metadata", "")
            if not phantom.contains(address) or not label.startswith(self._tag):
                continue
            count = label.removeprefix(self._tag)
            position = int(count.removesuffix("+"))
            if event["action"] == "alloc":
                live[address] = RawAllocation(address, event["size"], position)
                found.append(live[address])
            elif event["action"] == "free_completed" and address in live:
                # Nodes recorded by the call that freed it came before: the next count bounds them.
                live.pop(address).died = after.get(position, position) if count.endswith("+") else position
        return found
