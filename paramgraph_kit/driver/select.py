"""Which device and driver this process uses: the GPU where there is one, the simulated machine otherwise."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from paramgraph_kit.driver.api import Driver
from paramgraph_kit.trace.errors import UnsupportedError


def check_torch() -> None:
    """Raise UnsupportedError where torch is too old for either driver."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 11):
        raise UnsupportedError(f"paramgraph_kit needs torch 2.11 or newer, this is {torch.__version__}: upgrade torch")


@cache
def device() -> torch.device:
    """``cuda`` where CUDA is available, otherwise the simulated device, which the first call registers.

    Raises:
        UnsupportedError: torch is too old, or another backend has taken the slot that the simulator needs.
    """
    check_torch()
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    from paramgraph_kit.driver.sim.device import register

    return register()


@cache
def driver() -> Driver:
    """The driver of ``device()``, made once."""
    if device().type == "cuda":
        from paramgraph_kit.driver.cuda.driver import CudaDriver

        cuda: Any = CudaDriver()
        return cuda  # type: ignore[no-any-return]
    from paramgraph_kit.driver.sim.driver import SimDriver

    return SimDriver()


def driver_in_use() -> Driver | None:
    """The driver, if this process has used its device already; asking makes nothing."""
    if torch.cuda.is_available():
        return driver() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    from paramgraph_kit.driver.sim.device import registered

    return driver() if registered() else None


def teach_dynamo() -> None:
    """Tell Dynamo of the simulated device's streams, where there is that device."""
    from paramgraph_kit.driver.sim import device

    if device.registered():
        from paramgraph_kit.driver.sim.tracing import teach_dynamo as teach

        teach()


def twin() -> Any:
    """``torch.cuda``, or its simulated twin: the module that notebooks call ``cuda``."""
    if device().type == "cuda":
        return torch.cuda
    from paramgraph_kit.driver.sim import cuda_twin

    return cuda_twin


def try_backward(device: torch.device) -> None:
    """The smallest backward on the simulated device, which is as before it: no program counts its memory.

    Raises:
        RuntimeError: autograd has no queue for the device.
    """
    from paramgraph_kit.driver.sim import cuda_twin
    from paramgraph_kit.driver.sim.guard import rest

    fresh = not cuda_twin.memory_reserved()
    probe = torch.zeros(1).to(device).requires_grad_()
    torch.autograd.grad(probe.sum(), probe)
    del probe
    if fresh:
        rest()  # its thread lets go of the gradient
        cuda_twin.empty_cache()
        cuda_twin.reset_peak_memory_stats()
