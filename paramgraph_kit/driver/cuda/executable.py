"""An instantiated graph whose pointer words are rewritten before a launch, from the device or from the host."""

from __future__ import annotations

import ctypes
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cuda.bindings import driver as cu

from paramgraph_kit.driver.api import Binding, Recording
from paramgraph_kit.driver.cuda import kernels
from paramgraph_kit.driver.cuda.calls import DriverCallError, Owned, call, library
from paramgraph_kit.driver.cuda.random import advance
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import ParamgraphError, UnsupportedError

_UPDATABLE = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE
_BINDING = struct.Struct("<QIIq")  # struct Binding in kernels.cu


class CudaExecutable:
    """See driver.api.Executable."""

    def __init__(self, recording: Recording, bindings: Sequence[Binding], slots: int, patching: str, device: int):
        self._device = device
        self._random = recording.random_increment
        self._keep: list[Any] = []
        before = torch.cuda.mem_get_info(device)[0]
        self._clone(recording, bindings)
        self.patching = patching
        updaters = None
        if patching != "host":
            try:
                updaters = self._make_updatable()
                self.patching = "device"
            except (DriverCallError, UnsupportedError):
                if patching == "device":
                    raise
                self._clone(recording, bindings)  # a device-updatable node cannot be turned back
                self.patching = "host"
        raw = call(cu.cuGraphInstantiate, self._graph.raw, 0)
        self._exec = Owned(raw, cu.cuGraphExecDestroy)
        # Without an upload the first replay runs with the captured addresses.
        stream = torch.cuda.current_stream(device)
        call(cu.cuGraphUpload, raw, cu.CUstream(stream.cuda_stream))
        stream.synchronize()
        self.patch: Callable[[Sequence[int]], None] = (
            self._device_patch(bindings, slots, updaters)
            if updaters is not None
            else self._host_patch(recording, bindings)
        )
        self.launch = self._launcher()
        self.device_bytes = max(0, before - torch.cuda.mem_get_info(device)[0])

    def __repr__(self) -> str:
        return f"CudaExecutable({len(self._nodes)} nodes patched from the {self.patching})"

    def destroy(self) -> None:
        """Free the executable once the work already queued on the device is done (the driver waits)."""
        self._exec.close()
        self._graph.close()
        self._keep.clear()

    def _clone(self, recording: Recording, bindings: Sequence[Binding]) -> None:
        self._graph = Owned(call(cu.cuGraphClone, recording.graph.raw), cu.cuGraphDestroy)
        self._nodes = {
            i: call(cu.cuGraphNodeFindInClone, recording.nodes[i].handle[0], self._graph.raw)
            for i in {b.node for b in bindings}
        }

    def _make_updatable(self) -> dict[int, int]:
        kernels.function("pgk_patch_16")  # fails here, before a node is changed, where it cannot be built
        updaters = {}
        for index, node in self._nodes.items():
            value = cu.CUkernelNodeAttrValue()  # a fresh one each time: the driver writes its handle into it
            value.deviceUpdatableKernelNode.deviceUpdatable = 1
            call(cu.cuGraphKernelNodeSetAttribute, node, _UPDATABLE, value)
            updaters[index] = int(value.deviceUpdatableKernelNode.devNode)
        return updaters

    def _device_patch(
        self, bindings: Sequence[Binding], slots: int, updaters: dict[int, int]
    ) -> Callable[[Sequence[int]], None]:
        size = next((n for n in kernels.TABLE_SIZES if n >= slots), None)
        if size is None:
            raise ParamgraphError(f"{slots} tensors enter and leave one graph; the most is {kernels.TABLE_SIZES[-1]}")
        packed = b"".join(_BINDING.pack(updaters[b.node], b.offset, b.slot, b.delta) for b in bindings)
        rows = torch.frombuffer(bytearray(packed or bytes(_BINDING.size)), dtype=torch.uint8).to(f"cuda:{self._device}")
        table = (ctypes.c_uint64 * size)()
        where, count = ctypes.c_uint64(rows.data_ptr()), ctypes.c_uint32(len(bindings))
        arguments = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (table, where, count)))
        self._keep += [rows, table, where, count, arguments]
        launch_kernel, fill = library().cuLaunchKernel, struct.Struct(f"<{slots}Q").pack_into
        function = ctypes.c_void_p(kernels.function(f"pgk_patch_{size}"))
        blocks, one, threads, zero = (ctypes.c_uint(n) for n in (max(1, -(-len(bindings) // 64)), 1, 64, 0))
        current_stream, device, null, void = (
            torch_name("_cuda_getCurrentRawStream"),
            self._device,
            None,
            ctypes.c_void_p,
        )

        def patch(addresses: Sequence[int]) -> None:
            fill(table, 0, *addresses)
            status = launch_kernel(
                function, blocks, one, one, threads, one, one, zero, void(current_stream(device)), arguments, null
            )
            if status:
                raise DriverCallError("cuLaunchKernel", status, "while patching addresses")

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
            work.append((self._nodes[index], params, buffer, [(b.offset, b.slot, b.delta) for b in words]))
        set_params, executable, pack = cu.cuGraphExecKernelNodeSetParams, self._exec.raw, struct.Struct("<Q").pack_into
        success = cu.CUresult.CUDA_SUCCESS

        def patch(addresses: Sequence[int]) -> None:
            for node, params, buffer, words in work:
                for offset, slot, delta in words:
                    pack(buffer, offset, addresses[slot] + delta)
                (status,) = set_params(executable, node, params)
                if status != success:
                    raise DriverCallError("cuGraphExecKernelNodeSetParams", int(status), status.name)

        return patch

    def _launcher(self) -> Callable[[int], None]:
        graph_launch, executable, void = library().cuGraphLaunch, ctypes.c_void_p(int(self._exec.raw)), ctypes.c_void_p
        increment, device = self._random, self._device

        def launch(stream: int) -> None:
            status = graph_launch(executable, void(stream))
            if status:
                raise DriverCallError("cuGraphLaunch", status, "")

        def launch_random(stream: int) -> None:
            advance(device, increment)
            launch(stream)

        return launch_random if increment else launch
