"""The twin's device: its names, its one index, ranges for a profiler, and autocast under ``torch.cuda``'s old names."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from .errors import device_index, missing, require_device
from .first_use import in_use, use
from .machine import DEVICE_NAME, machine

# The captures that the simulator follows were recorded on an H200: what asks for the capability gets that one's.
CAPABILITY = (9, 0)


def get_device_name(device: Any = None) -> str:
    """How this device is labelled."""
    _look_for(device)
    return "simulated device"


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """That of the GPU whose captures the simulator follows."""
    _look_for(device)
    return CAPABILITY


# Its sizes, which are an H100's and an H200's.
SIZES = {
    "multi_processor_count": 132,
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
}


class _Properties(types.SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise missing("hardware", name)


def get_device_properties(device: Any = None) -> Any:
    """Name, memory, capability and sizes; it has no others, since nothing here has clocks."""
    _look_for(device)
    major, minor = CAPABILITY
    return _Properties(name=get_device_name(), total_memory=machine().arena.capacity, major=major, minor=minor, **SIZES)


def _look_for(device: Any) -> None:
    use()
    if device_index(device) > 0:
        raise AssertionError("Invalid device id")


def is_available() -> bool:
    """True: this module exists only where the device does."""
    return True


def is_initialized() -> bool:
    """Whether something has used the device, as what initialises CUDA does."""
    return in_use()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True."""
    use()
    return True


def init() -> None:
    """Use the device from here on."""
    use()


def device_count() -> int:
    """One."""
    return 1


def current_device() -> int:
    """Zero."""
    use()
    return 0


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """False: there is no other device."""
    set_device(device)
    set_device(peer_device)
    return False


class device:  # noqa: N801 - as torch.cuda calls it
    """``torch.cuda.device``: the only device there is, for the body of ``with``."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else device_index(device)

    def __enter__(self) -> None:
        if self.idx >= 0:
            use()
        require_device(self.idx)

    def __exit__(self, *_: object) -> None:
        pass


class device_of(device):  # noqa: N801 - as torch.cuda calls it
    """The device of a tensor, for the body of ``with``."""

    def __init__(self, obj: Any) -> None:
        super().__init__(0)


def set_device(device: Any) -> None:
    """Accepts the only device there is."""
    if device_index(device) >= 0:
        use()
    require_device(device)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast`` may use: for CUDA torch takes any, and operations refuse what they cannot do."""
    return [each for each in vars(torch).values() if isinstance(each, torch.dtype)]


@contextmanager
def _range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _nothing(*args: Any, **kwargs: Any) -> int:
    return 0


def _nested(*args: Any, **kwargs: Any) -> int:
    return -2  # what NVTX answers where nobody counts how deep ranges lie


# No profiler listens.
nvtx = types.SimpleNamespace(
    range=_range, mark=_nothing, range_push=_nested, range_pop=_nested, range_start=_nothing, range_end=_nothing
)
amp = types.SimpleNamespace(
    autocast=partial(torch.autocast, DEVICE_NAME), GradScaler=partial(torch.amp.GradScaler, DEVICE_NAME)
)
