"""The nodes of a graph that somebody else captured, to be looked at: nothing is lowered, refused or changed."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.cuda import nodes
from paramgraph_kit.driver.cuda.calls import call
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind
from paramgraph_kit.trace.wording import bytes_text

_HOST = cu.CUmemorytype.CU_MEMORYTYPE_HOST
_UNIFIED = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED


def nodes_of(graph: Any) -> list[RawNode]:
    """All nodes in a topological order, of every kind that CUDA has."""
    nodes.forget_functions()
    handles = nodes.handles_of(graph)
    deps = nodes.dependencies(graph, handles)
    order = nodes.topological(deps)
    place = {old: new for new, old in enumerate(order)}
    found = []
    for old in order:
        node = _node(handles[old])
        node.deps, node.position = tuple(sorted(place[d] for d in deps[old])), old
        found.append(node)
    return found


def _node(handle: Any) -> RawNode:
    kind = nodes.KINDS.get(call(cu.cuGraphNodeGetType, handle), NodeKind.EMPTY)
    none = (0, 0, 0)
    if kind is NodeKind.KERNEL:
        try:
            return nodes.kernel(handle)
        except RefusedError as error:  # its parameters are hidden; it is there all the same
            return RawNode(kind, error.reason.operation, b"", (), none, none, handle=handle)
    name = str(kind)
    if kind is NodeKind.MEMCPY:
        name = _copy(call(cu.cuGraphMemcpyNodeGetParams, handle))
    elif kind is NodeKind.MEMSET:
        p = call(cu.cuGraphMemsetNodeGetParams, handle)
        name = f"memset, {bytes_text(int(p.width) * max(int(p.height), 1) * int(p.elementSize))}"
    return RawNode(kind, name, b"", (), none, none, handle=handle)


def _copy(p: Any) -> str:
    nbytes = int(p.WidthInBytes) * max(int(p.Height), 1) * max(int(p.Depth), 1)
    source = _is_host(p.srcMemoryType, p.srcHost, p.srcDevice)
    target = _is_host(p.dstMemoryType, p.dstHost, p.dstDevice)
    where = {(False, False): "on device", (False, True): "to host", (True, False): "from host", (True, True): "on host"}
    return f"memcpy {where[source, target]}, {bytes_text(nbytes)}"


def _is_host(kind: Any, host: Any, device: Any) -> bool:
    if kind != _UNIFIED:
        return bool(kind == _HOST)
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, found = cu.cuPointerGetAttribute(attribute, cu.CUdeviceptr(int(device) or int(host or 0)))
    return status == cu.CUresult.CUDA_SUCCESS and int(found) == int(_HOST)
