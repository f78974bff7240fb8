"""Random numbers in graphs: kernels read seed and offset through pointers that must be fresh at every launch.

torch refreshes them only in CUDAGraph.replay(). One tiny graph of torch's own stays registered with the generator
for as long as the process lives: it keeps the two words allocated, and replaying it refreshes them.
"""

from __future__ import annotations

from functools import cache

import torch
from cuda.bindings import driver as cu

from paramgraph_kit.driver.cuda.calls import is_device_address
from paramgraph_kit.driver.cuda.nodes import read
from paramgraph_kit.trace.model import NodeKind


class _Ticker:
    def __init__(self, device: int) -> None:
        self.generator = torch.cuda.default_generators[device]
        state = self.generator.get_state()
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        stream = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            self._graph.capture_begin(capture_error_mode="thread_local")
            self._number = torch.rand(1, device=f"cuda:{device}")
            self._graph.capture_end()
        self._graph.instantiate()
        self.generator.set_state(state)

    def static_ranges(self) -> list[tuple[int, int, str]]:
        """Where the generator's seed and offset live, read from the tiny graph's own kernel."""
        found = []
        for node in read(cu.CUgraph(self._graph.raw_cuda_graph())):
            if node.kind is not NodeKind.KERNEL:
                continue
            for at in range(0, len(node.parameters) - 7, 8):
                address = int.from_bytes(node.parameters[at : at + 8], "little")
                if is_device_address(address) and address != self._number.data_ptr():
                    found.append((address, 8, "random generator"))
        return found


@cache
def ticker(device: int) -> _Ticker:
    """The tiny graph of one device; made before the first capture."""
    return _Ticker(device)


def position(device: int) -> int:
    """How far the generator has advanced."""
    return int(torch.cuda.default_generators[device].get_offset())


def advance(device: int, increment: int) -> None:
    """Write the generator's seed and offset where graphs read them, then move it on by ``increment``."""
    tick = ticker(device)
    start = tick.generator.get_offset()
    tick._graph.replay()
    tick.generator.set_offset(start + increment)
