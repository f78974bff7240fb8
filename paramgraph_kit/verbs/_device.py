"""The verb ``device``, and whether gradients can work on a device that was added to torch at run time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from paramgraph_kit.trace.errors import UnsupportedError

if TYPE_CHECKING:
    import torch


def device() -> torch.device:
    """``cuda`` where there is a GPU, otherwise the simulated device, which the first call makes.

    Without a GPU call this before the first ``backward()`` of the process.

    Raises:
        UnsupportedError: torch is too old, another backend has taken the simulator's slot, or a ``backward()`` has
            run before the simulated device was made.

    Examples:
        >>> device().type in ("cuda", "sim")
        True
    """
    from paramgraph_kit.driver import select

    found = select.device()
    if found.type != "cuda":
        check_backward(found)
    return found


_NO_GPU = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "CUDA driver version is insufficient",  # CUDAGraph of a build that has CUDA, where no driver is
    "no CUDA-capable device is detected",  # the same where a driver has no device, or all are hidden
    "Tried to instantiate dummy base class",  # CUDAGraph, Event
    "requires CUDA support",  # Stream
    "Cannot get CUDA generator without",
    "Cannot access accelerator device when none is available",  # pinned memory, before ``device()`` was called
)


def instead_of_cuda(error: BaseException) -> str:
    """What to say of an error that means that there is no GPU; "" of any other.

    Examples:
        >>> instead_of_cuda(RuntimeError("No CUDA GPUs are available"))
        'no GPU here: device=pgk.device() and pgk.cuda are the simulated ones, and run these lines'
        >>> instead_of_cuda(RuntimeError("CUDA error: no CUDA-capable device is detected"))[:11]
        'no GPU here'
        >>> instead_of_cuda(KeyError("a"))
        ''
    """
    if not any(text in str(error) for text in _NO_GPU):
        return ""
    return "no GPU here: device=pgk.device() and pgk.cuda are the simulated ones, and run these lines"


@cache
def check_backward(device: torch.device) -> None:
    """Run the smallest backward on the simulated device.

    Autograd makes a queue for each device once, at the first ``backward()`` of the process; a device that came later
    has none, and only an attempt can tell.

    Raises:
        UnsupportedError: a backward ran too early, so that no later one can run on the device.
    """
    import torch

    from paramgraph_kit.driver.select import try_backward

    with torch.inference_mode(False), torch.enable_grad():
        try:
            try_backward(device)
        except RuntimeError as error:
            if "device_ready_queues_" not in str(error):
                raise
            raise UnsupportedError(
                "a backward() ran before the simulated device was made, and autograd has no queue for it: in a fresh "
                "process, call paramgraph_kit.device() before the first backward()"
            ) from None
