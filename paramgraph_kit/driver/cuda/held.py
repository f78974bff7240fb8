"""How much device memory this process holds, everything included: allocator, graphs, code, context."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch


def held_bytes(device: int) -> int:
    """Bytes of this process on a device; where NVML does not list it (a container), of everybody who is on it."""
    listed = listed_bytes(device)
    if listed is not None:
        return listed
    free, everything = torch.cuda.mem_get_info(device)
    return everything - free


def listed_bytes(device: int) -> int | None:
    """Bytes of this process alone; None where NVML does not list it."""
    try:
        nvml, handle = _nvml(device)
        mine = [p for p in nvml.device_get_compute_running_processes_v3(handle) if p.pid == os.getpid()]
        return int(mine[0].used_gpu_memory)
    except Exception:  # no NVML, no permission, another namespace of processes
        return None


@cache
def _nvml(device: int) -> tuple[Any, Any]:
    from cuda.bindings import nvml

    nvml.init_v2()
    # By name, not by number: CUDA_VISIBLE_DEVICES renumbers for CUDA only.
    return nvml, nvml.device_get_handle_by_uuid(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
