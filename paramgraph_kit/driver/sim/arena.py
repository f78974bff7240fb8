"""Device memory: real addresses inside one host mapping.

The mapping is reserved without committing pages, so a device of 8 GiB costs what is really touched. Only *mapped*
ranges (segments that the allocator holds) may be read; any other address is CUDA's error 700, never a segfault:
phantom memory, a segment given back, a host pointer. On a coherent machine host memory may be read, too.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right, insort
from collections.abc import Sequence

import torch

from paramgraph_kit.driver.host_memory import host_memory
from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name

from .errors import cuda_error

GRANULE = 2 << 20  # what the device maps at least, as CUDA's allocator asks for


class Arena:
    """A device memory of ``capacity`` bytes; ``map`` and ``unmap`` are its cudaMalloc and cudaFree."""

    def __init__(self, capacity: int = 8 << 30) -> None:
        self.capacity = capacity // GRANULE * GRANULE
        self.fraction = 1.0  # of it that may be mapped
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._map = mmap.mmap(-1, self.capacity + GRANULE, flags=flags)
        raw = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.base = -(-raw // GRANULE) * GRANULE
        self._skew = self.base - raw
        self._free: list[tuple[int, int]] = [(self.base, self.capacity)]  # (address, size), sorted
        self._starts: list[int] = []  # mapped ranges, sorted
        self._sizes: dict[int, int] = {}
        self.mapped = 0
        self._next = self.base  # behind what was mapped last: as on a GPU, what was freed stays free for a while
        self.coherent = False  # whether kernels read host memory where it is, as on GH200
        self.epoch = 0  # grows when a range is unmapped: cached views are then to be checked again
        self._views: dict[torch.dtype, torch.Tensor] = {}
        construct = torch_name("_construct_storage_from_data_pointer")
        self._storage = construct(self.base, torch.device("cpu"), self.capacity)

    def map(self, nbytes: int) -> int | None:
        """The address of ``nbytes`` of zeroed memory (a multiple of 2 MiB), or None if there is no room."""
        if self.mapped + nbytes > self.capacity * self.fraction:
            return None
        fitting = [i for i, (_, size) in enumerate(self._free) if size >= nbytes]
        if not fitting:
            return None
        i = next((i for i in fitting if sum(self._free[i]) >= self._next + nbytes), fitting[0])
        begin, size = self._free.pop(i)
        address = max(begin, self._next) if begin + size >= self._next + nbytes else begin
        end, stop = address + nbytes, begin + size
        self._free[i:i] = [(at, upto - at) for at, upto in ((begin, address), (end, stop)) if at < upto]
        insort(self._starts, address)
        self._sizes[address] = nbytes
        self.mapped += nbytes
        self._next = end
        return address

    def unmap(self, address: int) -> None:
        """Give a range back; its bytes are gone and its address is illegal from now on."""
        size = self._sizes.pop(address)
        del self._starts[bisect_right(self._starts, address) - 1]
        self.mapped -= size
        self.epoch += 1
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, self._skew + address - self.base, size)
        else:  # the next owner must find zeros, as from the system
            ctypes.memset(address, 0, size)
        insort(self._free, (address, size))
        i = bisect_right(self._free, (address, size)) - 1
        if i + 1 < len(self._free) and address + size == self._free[i + 1][0]:
            size += self._free.pop(i + 1)[1]
            self._free[i] = (address, size)
        if i and sum(self._free[i - 1]) == address:
            before, room = self._free.pop(i - 1)
            self._free[i - 1] = (before, room + size)

    def is_mapped(self, address: int, nbytes: int = 1) -> bool:
        """Whether all of ``nbytes`` at ``address`` may be touched."""
        end = address + nbytes
        while True:  # a range may span neighbouring segments, as on the device
            i = bisect_right(self._starts, address) - 1
            if i < 0:
                return False
            stop = self._starts[i] + self._sizes[self._starts[i]]
            if address >= stop:
                return False
            if end <= stop:
                return True
            address = stop

    def view(
        self, address: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, elements: int = -1
    ) -> torch.Tensor:
        """A CPU tensor over device memory; ``elements`` that it spans, where that is known.

        Raises:
            torch.AcceleratorError: code 700, some byte of it is not mapped.
        """
        elements = extent(size, stride) if elements < 0 else elements
        if elements == 0:
            return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device="cpu")
        if not self.is_mapped(address, elements * dtype.itemsize):
            return torch.as_strided(self._on_host(address, elements, dtype), size, stride)
        whole = self._views.get(dtype)
        if whole is None:
            with torch.inference_mode(False):  # it is kept, and outlives the mode of whoever needed it first
                whole = self._views[dtype] = torch.empty(0, dtype=dtype, device="cpu").set_(self._storage)
        delta = address - self.base
        if delta % dtype.itemsize:  # CUDA calls this a misaligned address; only foreign pointers get here
            raise cuda_error(700)
        return torch.as_strided(whole, size, stride, delta // dtype.itemsize)

    def _on_host(self, address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A CPU tensor over host memory; raises error 700 where the device cannot read it, or nothing is there."""
        nbytes = elements * dtype.itemsize
        held = host_memory() if self.coherent and not self.owns(address) else None
        if held is None or not all(map(held, (*range(address, address + nbytes, mmap.PAGESIZE), address + nbytes - 1))):
            raise cuda_error(700)
        storage = torch_name("_construct_storage_from_data_pointer")(address, torch.device("cpu"), nbytes)
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage)

    def owns(self, address: int) -> bool:
        """Whether an address lies in the device's own range, mapped or not."""
        return self.base <= address < self.base + self.capacity

    def read(self, address: int, nbytes: int) -> bytes:
        """The bytes at an address; raises error 700 where nothing is mapped."""
        if not self.is_mapped(address, max(nbytes, 1)):
            raise cuda_error(700)
        return ctypes.string_at(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """Put bytes at an address; raises error 700 where nothing is mapped."""
        if not self.is_mapped(address, max(len(data), 1)):
            raise cuda_error(700)
        ctypes.memmove(address, data, len(data))
