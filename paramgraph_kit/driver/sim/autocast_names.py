"""``"cuda"`` in ``torch.autocast`` and ``GradScaler`` means the simulated device, where there is no CUDA.

Without it torch turns both off, with a warning, and a program would compute in float32 what a card does not. The
state of autocast is kept under both names: programs ask for either, and older functions for CUDA's alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from .machine import DEVICE_NAME

CUDA = "cuda"
_OTHER = {CUDA: DEVICE_NAME, DEVICE_NAME: CUDA}


def install_names() -> None:
    """Let torch's own classes and functions take CUDA's name for the device; nothing where there is CUDA."""
    if torch.cuda.is_available():
        return
    _mean_the_device(torch.amp.autocast_mode.autocast, "device_type", "device", None)
    _mean_the_device(torch.amp.GradScaler, "device", "_device", CUDA)
    _take_scales_of_the_device()
    _set_both("set_autocast_enabled", torch.set_autocast_enabled)
    _set_both("set_autocast_dtype", torch.set_autocast_dtype)
    _set_both("set_autocast_gpu_dtype", torch.set_autocast_dtype)
    _cast_for_either()


def _mean_the_device(kind: Any, parameter: str, attribute: str, default: str | None) -> None:
    """What is made for CUDA is made as for the device, and goes on to say CUDA."""
    plain: Any = kind.__init__

    @functools.wraps(plain)
    def init(made: Any, *args: Any, **options: Any) -> None:
        given = args[0] if args else options.get(parameter, default)
        if given != CUDA:
            plain(made, *args, **options)
            return
        plain(made, DEVICE_NAME, *args[1:], **{name: value for name, value in options.items() if name != parameter})
        setattr(made, attribute, CUDA)

    kind.__init__ = init


def _take_scales_of_the_device() -> None:
    """``GradScaler.update`` compares the kind of a new scale's device with its own."""
    kind: Any = torch.amp.GradScaler
    plain: Any = kind.update

    @functools.wraps(plain)
    def update(scaler: Any, new_scale: Any = None) -> None:
        own = scaler._device
        if own == CUDA and isinstance(new_scale, torch.Tensor):
            scaler._device = DEVICE_NAME
        try:
            plain(scaler, new_scale)
        finally:
            scaler._device = own

    kind.update = update


def _set_both(name: str, setting: Callable[[str, Any], Any]) -> None:
    """Set for one, it is for the other; a value alone is CUDA's, as before there were other devices."""
    plain: Any = getattr(torch, name)

    @functools.wraps(plain)
    def set_both(*args: Any, **options: Any) -> Any:
        found = plain(*args, **options)
        given = [*args, *options.values()]
        kind = next((each for each in given if isinstance(each, str)), CUDA)
        if kind in _OTHER:
            setting(_OTHER[kind], next(each for each in given if not isinstance(each, str)))
        return found

    setattr(torch, name, set_both)


def _cast_for_either() -> None:
    """``torch.amp.custom_fwd`` casts the tensors of its kind of device."""
    mode: Any = torch.amp.autocast_mode
    plain: Any = torch_name("_cast")

    @functools.wraps(plain)
    def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return plain(value, DEVICE_NAME if device_type == CUDA else device_type, dtype)

    mode._cast = cast
