"""Which addresses are memory of this process on the host."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from pathlib import Path

_MAPS = Path("/proc/self/maps")


def host_memory() -> Callable[[int], bool]:
    """A test for addresses of memory that this process can read now; a device's own mappings are left out.

    Where the system does not tell (it is Linux that does), no address is one.

    >>> import torch
    >>> host_memory()(torch.ones(1).data_ptr()), host_memory()(8)
    (True, False)
    """
    starts, ends = [], []
    for line in _MAPS.read_text().splitlines() if _MAPS.exists() else ():
        span, access = line.split(maxsplit=2)[:2]
        if access.startswith("r") and "/dev/nvidia" not in line:
            start, end = (int(part, 16) for part in span.split("-"))
            starts.append(start)
            ends.append(end)

    def test(value: int) -> bool:
        i = bisect.bisect_right(starts, value) - 1
        return i >= 0 and value < ends[i]

    return test
