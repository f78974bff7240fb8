"""Custom operations that do, inside a compiled region, what no scan of kernel parameters can see.

Each doubles its input, or adds a fixed ramp to it, whatever else it does, so that a step without graphs is right and
repeatable, and each does its trick on a GPU only, unless the simulated device has it too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

MASK = 0x5A5A_5A5A_5A5A  # hides an address from whoever looks for one
Operation = Callable[[Tensor], Tensor]


def child_graph(x: Tensor) -> Tensor:
    """Run another graph: in a capture, where no graph may be launched (status 900), as a child graph node."""
    if not x.is_cuda:
        return x * 2
    inner = _inner(x.shape, x.device)
    inner.x.copy_(x)
    if torch.cuda.is_current_stream_capturing():
        from cuda.bindings import driver as cu

        from paramgraph_kit.driver.cuda.calls import call

        child = cu.CUgraph(inner.graph.raw_cuda_graph())
        _append(lambda graph, before: call(cu.cuGraphAddChildGraphNode, graph, before, len(before), child))
    else:
        inner.graph.replay()
    return inner.y.clone()


def _append(make: Callable[[Any, list[Any]], Any]) -> None:
    """Add the node that ``make(graph, before)`` makes to the capture under way, behind what is there."""
    from cuda.bindings import driver as cu

    from paramgraph_kit.driver.cuda.calls import call

    stream = cu.CUstream(torch.cuda.current_stream().cuda_stream)
    _, _, graph, before, _, count = call(cu.cuStreamGetCaptureInfo, stream)
    node = make(graph, list(before)[:count])
    replace = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    call(cu.cuStreamUpdateCaptureDependencies, stream, [node], None, 1, int(replace))


class _Inner:
    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self.x = torch.zeros(shape, device=device)
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            self.y = self.x * 2


@cache
def _inner(shape: torch.Size, device: torch.device) -> _Inner:
    return _Inner(shape, device)


def conditional_node(x: Tensor) -> Tensor:
    """In a capture: a conditional node, whose body is empty."""
    if not x.is_cuda or not torch.cuda.is_current_stream_capturing():
        return x * 2
    from cuda.bindings import driver as cu

    from paramgraph_kit.driver.cuda.calls import call

    def add(graph: Any, before: list[Any]) -> Any:
        context = call(cu.cuCtxGetCurrent)
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = call(cu.cuGraphConditionalHandleCreate, graph, context, 0, 0)
        params.conditional.type = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        params.conditional.size = 1
        params.conditional.ctx = context
        return call(cu.cuGraphAddNode, graph, before, None, len(before), params)

    _append(add)
    return x * 2


def host_node(x: Tensor) -> Tensor:
    """Call a function of the host in stream order: ``free(NULL)``, which does nothing."""
    if x.is_cuda:
        free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        _succeeded(_libcuda().cuLaunchHostFunc(_stream(), free, None))
    return x * 2


def allocation_nodes(x: Tensor) -> Tensor:
    """Allocate and free in stream order past torch's allocator: a graph does that with nodes of its own."""
    if x.is_cuda:
        address = ctypes.c_uint64(0)
        _succeeded(_libcuda().cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(4096), _stream()))
        _succeeded(_libcuda().cuMemFreeAsync(address, _stream()))
    return x * 2


def event_node(x: Tensor) -> Tensor:
    """Record an event that others may wait for: a node of its own, because it is external."""
    if x.is_cuda:
        _event().record()
    return x * 2


@cache
def _event() -> torch.cuda.Event:
    return torch.cuda.Event(external=True)


def table_from_host(x: Tensor) -> Tensor:
    """A kernel follows a table of addresses that is copied from the host's memory."""
    if not x.is_cuda:
        return x * 2
    staging, arrived = _staging()
    if not torch.cuda.is_current_stream_capturing():
        arrived.synchronize()  # the last copy must have read what is about to change
    staging[0] = x.data_ptr()
    table = staging.to(x.device, non_blocking=True)
    if not torch.cuda.is_current_stream_capturing():
        arrived.record()
    return _doubled_through(table, x, 0)


@cache
def _staging() -> tuple[Tensor, torch.cuda.Event]:
    return torch.zeros(1, dtype=torch.int64, pin_memory=True), torch.cuda.Event()


def table_from_kernel(x: Tensor) -> Tensor:
    """The same table, filled in by a kernel: there the address is a parameter, so the scan finds it."""
    if not x.is_cuda:
        return x * 2
    return _doubled_through(torch.full((1,), x.data_ptr(), dtype=torch.int64, device=x.device), x, 0)


def hidden_word(x: Tensor) -> Tensor:
    """A kernel is given an address in disguise: a word that differs from capture to capture and is no address."""
    if not x.is_cuda:
        return x * 2
    from tests.corpus.opaque_kernels import doubled_by_key

    y = torch.empty_like(x)
    doubled_by_key[(1,)](x.data_ptr() ^ MASK, y, x.numel(), MASK, BLOCK=1024)
    return y


def hidden_word_in_aten(x: Tensor) -> Tensor:
    """The same disguise as the parameter of one of torch's own kernels, and a kernel that sees through it."""
    if not x.is_cuda:
        return x * 2
    table = torch.full((1,), x.data_ptr() ^ MASK, dtype=torch.int64, device=x.device)
    return _doubled_through(table, x, MASK)


def _doubled_through(table: Tensor, x: Tensor, key: int) -> Tensor:
    from tests.corpus.opaque_kernels import doubled_through_table

    y = torch.empty_like(x)
    doubled_through_table[(1,)](table, y, x.numel(), key, BLOCK=1024)
    return y


def hidden_tensor(x: Tensor) -> Tensor:
    """Add a tensor that is no input: the region reads memory that nobody told torch.compile of."""
    return x + _ramp(x.shape[-1], x.device)


@cache
def _ramp(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, dtype=torch.float32).to(device)


class Foreign:
    """Memory of the driver's own, outside torch's allocator; ``renew`` moves it elsewhere with other contents."""

    def __init__(self) -> None:
        self.live = 0
        self.kept: list[int] = []  # never freed: who still reads an old one gets an old number, not a fault

    def renew(self, value: int) -> None:
        """Allocate 4,096 bytes whose 32-bit words are all ``value``."""
        address = ctypes.c_uint64(0)
        _succeeded(_libcuda().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)))
        _succeeded(_libcuda().cuMemsetD32_v2(address, ctypes.c_uint(value), ctypes.c_size_t(1024)))
        self.live = address.value
        self.kept.append(self.live)


foreign = Foreign()


def foreign_memory(x: Tensor) -> Tensor:
    """Double, and add the first word of memory that torch's allocator does not know."""
    if not x.is_cuda:
        return x * 2
    from tests.corpus.opaque_kernels import doubled_plus_word

    if not foreign.live:
        foreign.renew(0)
    y = torch.empty_like(x)
    doubled_plus_word[(1,)](x, foreign.live, y, x.numel(), BLOCK=1024)
    return y


def waits_for_host(x: Tensor) -> Tensor:
    """The host reads a value in the middle: no capture survives that."""
    return x * 2 if float(x[0, 0].cpu()) < 1e30 else x


_calls = [0]


def changes_its_mind(x: Tensor) -> Tensor:
    """Launch another number of kernels from call to call, with one result."""
    _calls[0] += 1
    for _ in range(_calls[0] % 3):
        x = x + 0
    return x * 2


def unsafe(x: Tensor) -> Tensor:
    """Tagged by its author as unsafe in graphs."""
    return x * 2


OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (
        child_graph,
        conditional_node,
        host_node,
        allocation_nodes,
        event_node,
        table_from_host,
        table_from_kernel,
        hidden_word,
        hidden_word_in_aten,
        hidden_tensor,
        foreign_memory,
        waits_for_host,
        changes_its_mind,
        unsafe,
    )
}


@cache
def registered(name: str) -> Any:
    """The operation as torch.compile sees it: opaque, with a shape and no body."""
    tags = (torch.Tag.cudagraph_unsafe,) if name == "unsafe" else ()
    operation = torch.library.custom_op(f"pgk_corpus::{name}", OPERATIONS[name], mutates_args=(), tags=tags)
    operation.register_fake(torch.empty_like)
    return operation


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _libcuda() -> ctypes.CDLL:
    from paramgraph_kit.driver.cuda.calls import library

    return library()


def _succeeded(status: int) -> None:
    if status:
        raise RuntimeError(f"a call of the CUDA driver failed with status {status}")
