"""Reading the nodes of a captured graph, and lowering memset and memcpy nodes to kernels.

The driver API is needed: the runtime's fails on kernels of cuModuleLoadData, such as Triton's.
"""

from __future__ import annotations

import ctypes
import heapq
import struct
from collections import defaultdict
from functools import lru_cache
from typing import Any

from cuda.bindings import driver as cu

from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.cuda import kernels
from paramgraph_kit.driver.cuda.calls import call
from paramgraph_kit.driver.kernel_names import may_write_addresses
from paramgraph_kit.trace.errors import DriverCallError, RefusedError
from paramgraph_kit.trace.model import NodeKind, Reason

_T = cu.CUgraphNodeType
KINDS = {
    _T.CU_GRAPH_NODE_TYPE_KERNEL: NodeKind.KERNEL,
    _T.CU_GRAPH_NODE_TYPE_MEMCPY: NodeKind.MEMCPY,
    _T.CU_GRAPH_NODE_TYPE_MEMSET: NodeKind.MEMSET,
    _T.CU_GRAPH_NODE_TYPE_HOST: NodeKind.HOST,
    _T.CU_GRAPH_NODE_TYPE_GRAPH: NodeKind.CHILD_GRAPH,
    _T.CU_GRAPH_NODE_TYPE_EMPTY: NodeKind.EMPTY,
    _T.CU_GRAPH_NODE_TYPE_WAIT_EVENT: NodeKind.EVENT_WAIT,
    _T.CU_GRAPH_NODE_TYPE_EVENT_RECORD: NodeKind.EVENT_RECORD,
    _T.CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: NodeKind.SEMAPHORE_SIGNAL,
    _T.CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: NodeKind.SEMAPHORE_WAIT,
    _T.CU_GRAPH_NODE_TYPE_MEM_ALLOC: NodeKind.MEM_ALLOC,
    _T.CU_GRAPH_NODE_TYPE_MEM_FREE: NodeKind.MEM_FREE,
    _T.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: NodeKind.BATCH_MEM_OP,
    _T.CU_GRAPH_NODE_TYPE_CONDITIONAL: NodeKind.CONDITIONAL,
}
# Kinds whose memory a scan of kernel parameters reaches; every other kind is refused.
LAUNCHABLE = {NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.MEMSET, NodeKind.EMPTY}


def read(graph: Any) -> list[RawNode]:
    """The nodes of ``graph`` in a topological order (creation order where free); memsets and memcpys lowered.

    Raises RefusedError for a node whose memory no parameter scan reaches.
    """
    forget_functions()
    handles = handles_of(graph)
    kinds = check_kinds(graph)
    handles = [
        _lower(graph, node, kind) if kind in (NodeKind.MEMCPY, NodeKind.MEMSET) else node
        for node, kind in zip(handles, kinds, strict=True)
    ]
    deps = dependencies(graph, handles)
    order = topological(deps)
    place = {old: new for new, old in enumerate(order)}
    result = []
    for old in order:
        kind = kinds[old]
        sorted_deps = tuple(sorted(place[d] for d in deps[old]))
        if kind is NodeKind.EMPTY:
            result.append(RawNode(kind, "empty", b"", sorted_deps, position=old, handle=handles[old]))
            continue
        node = kernel(handles[old])
        node.deps, node.position = sorted_deps, old
        node.lowered_from = kind if kind is not NodeKind.KERNEL else None
        result.append(node)
    return result


def check_kinds(graph: Any) -> list[NodeKind]:
    """The kind of every node; raises RefusedError for one whose memory no parameter scan reaches."""
    kinds = [KINDS.get(call(cu.cuGraphNodeGetType, node)) for node in handles_of(graph)]
    for kind in kinds:
        if kind not in LAUNCHABLE:
            name = kind.value if kind else "node of a kind this version does not know"
            raise RefusedError(Reason("opaque-node", f"a {name} node cannot be given new addresses", operation=name))
    return [kind for kind in kinds if kind is not None]


def handles_of(graph: Any) -> list[Any]:
    """The driver's handles of all nodes, in the order of creation."""
    count = call(cu.cuGraphGetNodes, graph, 0)[1]
    return list(call(cu.cuGraphGetNodes, graph, count)[0])[:count] if count else []


def dependencies(graph: Any, handles: list[Any]) -> list[list[int]]:
    """For each node the positions of those that it waits for."""
    index = {int(node): i for i, node in enumerate(handles)}
    deps: list[list[int]] = [[] for _ in handles]
    count = call(cu.cuGraphGetEdges, graph, 0)[-1]
    if count:
        before, after = call(cu.cuGraphGetEdges, graph, count)[:2]
        for a, b in zip(before[:count], after[:count], strict=True):
            deps[index[int(b)]].append(index[int(a)])
    return deps


def topological(deps: list[list[int]]) -> list[int]:
    """The order of creation, changed only where a node waits for a later one."""
    waiting = [len(d) for d in deps]
    followers: dict[int, list[int]] = defaultdict(list)
    for node, before in enumerate(deps):
        for d in before:
            followers[d].append(node)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for follower in followers[node]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    return order


def kernel(handle: Any) -> RawNode:
    """A kernel node with its packed parameters."""
    params = call(cu.cuGraphKernelNodeGetParams, handle)
    function, name, layout = _function(int(params.func), int(params.kern))
    grid = (int(params.gridDimX), int(params.gridDimY), int(params.gridDimZ))
    block = (int(params.blockDimX), int(params.blockDimY), int(params.blockDimZ))
    data = _packed(int(params.extra)) if params.extra else _gathered(int(params.kernelParams or 0), layout, name)
    return RawNode(
        NodeKind.KERNEL,
        name,
        data,
        (),
        grid,
        block,
        int(params.sharedMemBytes),
        layout=layout,
        writes_addresses=may_write_addresses(name),
        handle=(handle, function, layout),
    )


@lru_cache(maxsize=4096)
def _function(func: int, kern: int) -> tuple[int, str, tuple[tuple[int, int], ...]]:
    """(function, name, ((offset, size) of every parameter))."""
    function = func or int(call(cu.cuKernelGetFunction, cu.CUkernel(kern)))
    name = call(cu.cuFuncGetName, cu.CUfunction(function))
    layout: list[tuple[int, int]] = []
    while True:
        status, offset, size = cu.cuFuncGetParamInfo(cu.CUfunction(function), len(layout))
        if status == cu.CUresult.CUDA_ERROR_INVALID_VALUE:
            break  # past the last parameter
        if status != cu.CUresult.CUDA_SUCCESS:
            raise DriverCallError("cuFuncGetParamInfo", int(status), status.name)
        layout.append((int(offset), int(size)))
    return function, name.decode() if isinstance(name, bytes) else str(name), tuple(layout)


def forget_functions() -> None:
    """Before a graph is read: since the last one code may have been unloaded, and another function is there now."""
    _function.cache_clear()


def _gathered(pointers: int, layout: tuple[tuple[int, int], ...], name: str) -> bytes:
    if not layout:
        return b""
    if not pointers:
        raise RefusedError(Reason("opaque-node", "a kernel's parameters cannot be read", operation=name))
    buffer = bytearray(max(offset + size for offset, size in layout))
    for (offset, size), address in zip(layout, (ctypes.c_uint64 * len(layout)).from_address(pointers), strict=True):
        buffer[offset : offset + size] = ctypes.string_at(address, size)
    return bytes(buffer)


def _packed(extra: int) -> bytes:
    """Parameters in one buffer: {BUFFER_POINTER, buffer, BUFFER_SIZE, &size, END}; Hopper's nvjet kernels do this."""
    fields: dict[int, int] = {}
    words = (ctypes.c_uint64 * 8).from_address(extra)
    for i in (0, 2):
        fields[words[i]] = words[i + 1]
        if words[i] == 0 or words[i + 2] == 0:
            break
    size = ctypes.c_size_t.from_address(fields[2]).value
    return ctypes.string_at(fields[1], size)


def _lower(graph: Any, node: Any, kind: NodeKind) -> Any:
    """Replace a memset or memcpy node by a kernel node with the same place in the graph."""
    name, data, nbytes = _fill(node) if kind is NodeKind.MEMSET else _copy(node)
    function = kernels.function(name)
    storage = ctypes.create_string_buffer(data, len(data))
    address = ctypes.addressof(storage)
    layout = _function(function, 0)[2]
    pointers = (ctypes.c_uint64 * len(layout))(*[address + offset for offset, _ in layout])
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = cu.CUfunction(function)
    params.gridDimX = min(max(1, -(-nbytes // (256 * 16))), 1024)
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1
    params.blockDimX = 256
    params.kernelParams = ctypes.addressof(pointers)
    before = _neighbours(cu.cuGraphNodeGetDependencies, node)
    after = _neighbours(cu.cuGraphNodeGetDependentNodes, node)
    call(cu.cuGraphDestroyNode, node)
    new = call(cu.cuGraphAddKernelNode, graph, before, len(before), params)
    if after:
        call(cu.cuGraphAddDependencies, graph, [new] * len(after), after, None, len(after))
    return new


def _neighbours(function: Any, node: Any) -> list[Any]:
    count = call(function, node, 0)[-1]
    return list(call(function, node, count)[0])[:count] if count else []


def _fill(node: Any) -> tuple[str, bytes, int]:
    p = call(cu.cuGraphMemsetNodeGetParams, node)
    width, height, pitch = int(p.width), max(int(p.height), 1), int(p.pitch)
    data = struct.pack("<QQQQII", int(p.dst), width, height, pitch, int(p.value), int(p.elementSize))
    return "pgk_fill", data, width * height * int(p.elementSize)


def _copy(node: Any) -> tuple[str, bytes, int]:
    p = call(cu.cuGraphMemcpyNodeGetParams, node)
    on_device = (cu.CUmemorytype.CU_MEMORYTYPE_DEVICE, cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED)
    if p.srcMemoryType not in on_device or p.dstMemoryType not in on_device:
        raise RefusedError(Reason("host-memcpy", "a copy from or to host memory stays at its captured address"))
    width, height, depth = int(p.WidthInBytes), max(int(p.Height), 1), max(int(p.Depth), 1)
    spitch, dpitch = int(p.srcPitch) or width, int(p.dstPitch) or width
    sslice, dslice = spitch * (int(p.srcHeight) or height), dpitch * (int(p.dstHeight) or height)
    source = int(p.srcDevice) + int(p.srcXInBytes) + int(p.srcY) * spitch + int(p.srcZ) * sslice
    target = int(p.dstDevice) + int(p.dstXInBytes) + int(p.dstY) * dpitch + int(p.dstZ) * dslice
    data = struct.pack("<9Q", target, source, width, height, depth, dpitch, dslice, spitch, sslice)
    return "pgk_copy", data, width * height * depth
