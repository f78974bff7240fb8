"""An instantiated graph whose pointer words are rewritten at its launch, from the device or from the host.

From the device: the graph's first node is our patch kernel, on which everything else waits. It gets today's addresses
in its own parameters, the only ones that the host writes, and sets those of the nodes behind it. CUDA documents a node
of the same graph as a caller of cudaGraphKernelNodeSetParam, and its immediate dependents as those that see the update.
"""

from __future__ import annotations

import ctypes
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cuda.bindings import driver as cu

from paramgraph_kit.driver.api import Binding, RawNode, Recording
from paramgraph_kit.driver.cuda import kernels
from paramgraph_kit.driver.cuda.calls import Owned, call, library
from paramgraph_kit.driver.cuda.forks import stream_of
from paramgraph_kit.driver.cuda.random import advance
from paramgraph_kit.driver.cuda.shared_memory import allowed
from paramgraph_kit.trace.errors import DriverCallError, RefusedError, UnsupportedError
from paramgraph_kit.trace.model import NodeKind, Reason

_UPDATABLE = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE
_BINDING = struct.Struct("<QIIq")  # struct Binding in kernels.cu


class CudaExecutable:
    """See driver.api.Executable."""

    def __init__(
        self, recording: Recording, nodes: range, bindings: Sequence[Binding], slots: int, patching: str, device: int
    ) -> None:
        self._device = device
        self._random = 0 if nodes.start else recording.random_increment
        self._keep: list[Any] = []  # host memory that the driver has the addresses of
        self._rows: torch.Tensor | None = None  # the bindings, in device memory
        self._streams: set[int] = set()  # that the allocator knows to read the rows
        free = torch.cuda.mem_get_info(device)[0]  # everybody's: asking NVML for this process takes milliseconds
        self._clone(recording, nodes, bindings)
        self.patching = patching
        patch_node = None
        if patching != "host":
            try:
                patch_node = self._add_patch_node(recording, bindings, slots)
                self.patching = "device"
            except (DriverCallError, UnsupportedError):
                if patching == "device":
                    raise
                self._clone(recording, nodes, bindings)  # a device-updatable node cannot be turned back
                self.patching = "host"
        raw = call(cu.cuGraphInstantiate, self._graph.raw, 0)
        self._exec = Owned(raw, cu.cuGraphExecDestroy)
        self._entry = ctypes.c_void_p(int(raw))  # what launches name; nothing once it is destroyed
        # Without an upload the first replay runs with the captured addresses.
        stream = torch.cuda.current_stream(device)
        call(cu.cuGraphUpload, raw, cu.CUstream(stream.cuda_stream))
        stream.synchronize()
        self.patch: Callable[[Sequence[int]], None] = (
            self._host_patch(recording, bindings) if patch_node is None else self._device_patch(patch_node, slots)
        )
        self.launch = self._launcher()
        self.device_bytes = max(0, free - torch.cuda.mem_get_info(device)[0])

    def __repr__(self) -> str:
        return f"CudaExecutable({len(self._nodes)} nodes patched from the {self.patching})"

    def destroy(self) -> None:
        """Give everything back. CUDA keeps what a launch in flight needs, and the allocator the rows that it reads."""
        self._entry.value = None  # who comes too late gets an error of CUDA's, and reads no memory that is gone
        self._exec.close()
        self._graph.close()
        self._keep.clear()
        self._rows = None

    def _clone(self, recording: Recording, nodes: range, bindings: Sequence[Binding]) -> None:
        self._graph = Owned(call(cu.cuGraphClone, recording.graph.raw), cu.cuGraphDestroy)
        bound = {b.node for b in bindings}
        self._nodes = {}
        for index, node in enumerate(recording.nodes):
            if index in bound or index not in nodes:
                copy = call(cu.cuGraphNodeFindInClone, node.handle[0], self._graph.raw)
                if index in nodes:
                    self._nodes[index] = copy
                else:
                    call(cu.cuGraphDestroyNode, copy)

    def _add_patch_node(self, recording: Recording, bindings: Sequence[Binding], slots: int) -> Any:
        """Put the patch kernel before everything else and let it update the nodes behind it."""
        size = next((n for n in kernels.TABLE_SIZES if n >= slots), None)
        if size is None:
            most = kernels.TABLE_SIZES[-1]
            raise UnsupportedError(f"{slots} addresses enter one graph, and the device patches at most {most}")
        function = kernels.function(f"pgk_patch_{size}")  # where it cannot be built, fail unchanged
        updaters = {}
        for index, node in self._nodes.items():
            value = cu.CUkernelNodeAttrValue()  # a fresh one each time: the driver writes its handle into it
            value.deviceUpdatableKernelNode.deviceUpdatable = 1
            with allowed(*_needs(recording.nodes[index]), self._device):
                call(cu.cuGraphKernelNodeSetAttribute, node, _UPDATABLE, value)
            updaters[index] = int(value.deviceUpdatableKernelNode.devNode)
        packed = b"".join(_BINDING.pack(updaters[b.node], b.offset, b.slot, b.delta) for b in bindings)
        rows = torch.frombuffer(bytearray(packed or bytes(_BINDING.size)), dtype=torch.uint8).to(f"cuda:{self._device}")
        self._table, self._rows = (ctypes.c_uint64 * size)(), rows
        self._streams.add(torch.cuda.current_stream(self._device).cuda_stream)
        where, count = ctypes.c_uint64(rows.data_ptr()), ctypes.c_uint32(len(bindings))
        arguments = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (self._table, where, count)))
        self._params = params = cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = cu.CUfunction(function)
        params.gridDimX, params.blockDimX = max(1, -(-len(bindings) // 64)), 64
        params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1
        params.kernelParams = ctypes.addressof(arguments)
        self._keep += [where, count, arguments]
        graph = self._graph.raw
        roots = list(call(cu.cuGraphGetRootNodes, graph, call(cu.cuGraphGetRootNodes, graph, 0)[1])[0])
        first = call(cu.cuGraphAddKernelNode, graph, [], 0, params)
        call(cu.cuGraphAddDependencies, graph, [first] * len(roots), roots, None, len(roots))
        return first

    def _device_patch(self, node: Any, slots: int) -> Callable[[Sequence[int]], None]:
        set_params, fill = library().cuGraphExecKernelNodeSetParams_v2, struct.Struct(f"<{slots}Q").pack_into
        executable, where = self._entry, ctypes.c_void_p(int(node))
        kept, table = self._params, self._table
        params = ctypes.c_void_p(kept.getPtr())

        def patch(addresses: Sequence[int]) -> None:
            fill(table, 0, *addresses)
            status = set_params(executable, where, params)
            if status:
                raise DriverCallError("cuGraphExecKernelNodeSetParams", status, "while patching addresses")

        return patch

    def _host_patch(self, recording: Recording, bindings: Sequence[Binding]) -> Callable[[Sequence[int]], None]:
        by_node: dict[int, list[Binding]] = defaultdict(list)
        for binding in bindings:
            by_node[binding.node].append(binding)
        work = []
        for index, words in by_node.items():
            raw = recording.nodes[index]
            _, function, layout = raw.handle
            buffer = ctypes.create_string_buffer(raw.parameters, len(raw.parameters))
            params = cu.CUDA_KERNEL_NODE_PARAMS()
            params.func = cu.CUfunction(function)
            params.gridDimX, params.gridDimY, params.gridDimZ = raw.grid
            params.blockDimX, params.blockDimY, params.blockDimZ = raw.block
            params.sharedMemBytes = raw.shared_bytes
            base = ctypes.addressof(buffer)
            if layout and max(o + s for o, s in layout) == len(raw.parameters):
                pointers = (ctypes.c_uint64 * len(layout))(*[base + offset for offset, _ in layout])
                params.kernelParams = ctypes.addressof(pointers)
                self._keep += [buffer, pointers]
            else:
                size = ctypes.c_size_t(len(raw.parameters))
                extra = (ctypes.c_uint64 * 5)(1, base, 2, ctypes.addressof(size), 0)
                params.extra = ctypes.addressof(extra)
                self._keep += [buffer, size, extra]
            needs = _needs(raw)
            work.append((needs, self._nodes[index], params, buffer, [(b.offset, b.slot, b.delta) for b in words]))
            # Asked now, with what was captured: a node that does not take its own parameters takes no others in a call.
            with allowed(*needs, self._device):
                (status,) = cu.cuGraphExecKernelNodeSetParams(self._exec.raw, self._nodes[index], params)
            if status != cu.CUresult.CUDA_SUCCESS:
                text = f"CUDA takes no parameters for a kernel of the graph any more ({status.name})"
                raise RefusedError(Reason("opaque-node", text, operation=raw.name))
        set_params, executable, pack = cu.cuGraphExecKernelNodeSetParams, self._exec.raw, struct.Struct("<Q").pack_into
        success, device = cu.CUresult.CUDA_SUCCESS, self._device

        entry = self._entry

        def patch(addresses: Sequence[int]) -> None:
            if not entry:
                raise DriverCallError("cuGraphExecKernelNodeSetParams", 1, "the executable is destroyed")
            for needs, node, params, buffer, words in work:
                for offset, slot, delta in words:
                    pack(buffer, offset, addresses[slot] + delta)
                (status,) = set_params(executable, node, params)
                if status != success:
                    with allowed(*needs, device) as raised:
                        (status,) = set_params(executable, node, params) if raised else (status,)
                if status != success:
                    raise DriverCallError("cuGraphExecKernelNodeSetParams", int(status), status.name)

        return patch

    def _read_on(self, stream: int) -> None:
        """A first launch on a stream: until its work is done the rows' memory may not be given to anybody else."""
        if self._rows is not None:
            self._rows.record_stream(stream_of(stream, self._device))
        self._streams.add(stream)

    def _launcher(self) -> Callable[[int], None]:
        graph_launch, executable, void = library().cuGraphLaunch, self._entry, ctypes.c_void_p
        increment, device = self._random, self._device

        streams = self._streams

        def launch(stream: int) -> None:
            if stream not in streams:
                self._read_on(stream)
            status = graph_launch(executable, void(stream))
            if status:
                raise DriverCallError("cuGraphLaunch", status, "")

        def launch_random(stream: int) -> None:
            advance(device, increment)
            launch(stream)

        return launch_random if increment else launch


def _needs(node: RawNode) -> tuple[int, int, int]:
    """(CUkernel or 0, CUfunction, bytes of dynamic shared memory) of a node."""
    if node.kind is not NodeKind.KERNEL or not node.shared_bytes:
        return 0, 0, 0
    return int(call(cu.cuGraphKernelNodeGetParams, node.handle[0]).kern), node.handle[1], node.shared_bytes
