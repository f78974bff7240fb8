"""Phantom memory: address ranges that a capture may record but never touch.

Capture executes nothing, so what it records need not exist. One physical chunk is mapped under a whole range
again and again: device-to-device copies and cuBLAS check in capture that an address is mapped, and any size
of capture costs one chunk. The range is unmapped afterwards, so that a pointer which escaped patching faults
instead of reading something.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from paramgraph_kit.driver.cuda.calls import call, relaxed
from paramgraph_kit.driver.phantom_layout import GAP, GRAIN, Layout
from paramgraph_kit.driver.torch_names import torch_name

CHUNK = 32 << 20  # 64 GiB mapped in steps of 32 MiB took 60-85 ms on an H200
RANGE = 512 << 30  # address space is free
# Their upper halves (6784 and 11136) are no common size of a tensor: two packed 32-bit integers are no address.
BASE = (0x1A80_0000_0000, 0x2B80_0000_0000)


class PhantomRange:
    """One side's range and the allocator that hands it out; entered for one capture at a time."""

    def __init__(self, device: int, side: int) -> None:
        self.device = device
        self._side = side
        self.base = int(call(cu.cuMemAddressReserve, RANGE, GRAIN, BASE[side], 0))
        self.layout = Layout(self.base, RANGE, side)
        self.reached = self.base  # the end of all that any capture was given
        self._mapped = self.base
        self._chunk: Any = None
        self.exhausted = False
        self._live: set[int] = set()  # segments that the caching allocator has not given back
        # Kept on self: torch holds the raw addresses of these two callbacks.
        self._on_alloc = _ALLOC(self._alloc)
        self._on_free = _FREE(lambda address, *_: self._live.discard(address))
        self.allocator = torch_name("_cuda_customAllocator")(
            ctypes.cast(self._on_alloc, ctypes.c_void_p).value or 0,
            ctypes.cast(self._on_free, ctypes.c_void_p).value or 0,
        )

    def __enter__(self) -> PhantomRange:
        self._unmap()  # what somebody held for longer than a capture
        self._chunk = call(cu.cuMemCreate, CHUNK, _properties(self.device), 0)
        self._mapped = self.base
        self.layout = Layout(self.base, RANGE, self._side)
        self.exhausted = False
        return self

    def __exit__(self, *_: object) -> None:
        if not self._live:  # else somebody still holds a tensor on this memory, which stays mapped
            self._unmap()

    @property
    def free(self) -> bool:
        """Whether nobody holds memory in this range."""
        return not self._live

    def _unmap(self) -> None:
        if self._mapped > self.base:
            call(cu.cuMemUnmap, self.base, self._mapped - self.base)
            self._mapped = self.base
        if self._chunk is not None:
            call(cu.cuMemRelease, self._chunk)
            self._chunk = None

    def contains(self, address: int) -> bool:
        """Whether an address lies in this side's range."""
        return self.base <= address < self.base + RANGE

    def reserve(self, nbytes: int, residue: int = 0) -> int:
        """A fresh address with a gap on either side, equal to ``residue`` modulo 512."""
        start = self.layout.place(nbytes, residue)
        self.reached = max(self.reached, self.layout.end)
        self._map(self.layout.end + GAP)
        return start

    def _map(self, end: int) -> None:
        start = self._mapped
        if end <= start:
            return
        with relaxed():  # mapping is not a stream operation, but capture in thread-local mode may object to it
            while self._mapped < end:
                call(cu.cuMemMap, self._mapped, CHUNK, 0, self._chunk, 0)
                self._mapped += CHUNK
            call(cu.cuMemSetAccess, start, self._mapped - start, [_access(self.device)], 1)

    def _alloc(self, size: int, _device: int, _stream: int | None) -> int:
        try:
            address = self.reserve(size)
        except Exception:
            self.exhausted = True  # an exception cannot cross the C++ caller: a null address is its "out of memory"
            return 0
        self._live.add(address)
        return address


_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


def _location(device: int) -> Any:
    location = cu.CUmemLocation()
    location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


def _properties(device: int) -> Any:
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location(device)
    return properties


def _access(device: int) -> Any:
    access = cu.CUmemAccessDesc()
    access.location = _location(device)
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


# Never forgotten: torch calls a range's allocator back when the last tensor on it dies, whenever that is.
_ranges: dict[tuple[int, int], list[PhantomRange]] = {}


def was_phantom(address: int) -> bool:
    """Whether some capture may have been given this address."""
    return any(each.base <= address < each.reached for ranges in _ranges.values() for each in ranges)


def phantom_range(device: int, side: int) -> PhantomRange:
    """A range of one side on one device in which nobody holds memory: the first one, unless a tensor outlived it."""
    known = _ranges.setdefault((device, side), [])
    free = next((each for each in known if each.free), None)
    if free is None:
        free = PhantomRange(device, side)
        known.append(free)
    return free
