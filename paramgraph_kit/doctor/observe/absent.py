"""What a function asks torch about CUDA where there is none: the answer is another one on a GPU, and so is the way on.

Most that only CUDA has raises without it, and says so. These answer: no, none, zero, or they turn themselves off.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.places import Places
from paramgraph_kit.driver.files import OURS, package_of
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Frame

CUDA = "cuda"
# Functions of torch.cuda that answer without a GPU, or do nothing.
_ANSWERING = (
    *("is_available", "device_count", "is_initialized", "memory_allocated", "memory_reserved", "max_memory_allocated"),
    *("max_memory_reserved", "memory_stats", "empty_cache", "manual_seed", "manual_seed_all", "seed", "seed_all"),
)
# Packages that are of no use without it, and so are not there.
FOR_CUDA = ("apex", "bitsandbytes", "cupy", "flash", "pycuda", "transformer", "triton", "xformers")
Asked = dict[str, Frame | None]  # what was asked, and at which line of the user's first


@contextmanager
def asking(places: Places) -> Iterator[Asked]:
    """Note what this thread asks for while the block runs; nothing where there is a GPU."""
    asked: Asked = {}
    thread = threading.get_ident()

    def note(what: str, caller: FrameType | None) -> None:
        if threading.get_ident() != thread or caller is None or what in asked:
            return
        file = caller.f_code.co_filename
        if not file.startswith(OURS) and package_of(file) != "torch":
            asked[what] = places.of(caller).frame()

    def called(name: str) -> Callable[[Any], Any]:
        def make(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                note(f"torch.cuda.{name}()", sys._getframe(1))
                return function(*args, **kwargs)

            return call

        return make

    def is_cuda(plain: Any) -> Any:
        def read(tensor: torch.Tensor) -> Any:
            note("is_cuda", sys._getframe(1))
            return plain.__get__(tensor)

        return property(read)

    def made(what: str) -> Callable[[Any], Any]:
        """Of a thing that is made for a kind of device, and off where there is none of it."""

        def make(function: Any) -> Any:
            def init(made: Any, device: Any = CUDA, *args: Any, **kwargs: Any) -> None:
                if str(kwargs.get("device_type", kwargs.get("device", device))).partition(":")[0] == CUDA:
                    note(f"{what}({CUDA!r})", _outside(sys._getframe(1)))
                if {"device_type", "device"} & set(kwargs):
                    function(made, *args, **kwargs)
                else:
                    function(made, device, *args, **kwargs)

            return init

        return make

    def flags(function: Any) -> Any:
        def set_for_a_while(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("benchmark", args[1] if len(args) > 1 else False):
                note("cudnn.flags(benchmark=True)", sys._getframe(1))
            return function(*args, **kwargs)

        return set_for_a_while

    def scales(function: Any) -> Any:
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(scaler, "_device", "") == CUDA and not scaler.is_enabled():
                note(f"GradScaler({CUDA!r})", sys._getframe(1))
            return function(scaler, *args, **kwargs)

        return scale

    if driver().device.type == CUDA:
        yield asked
        return
    with ExitStack() as stack:
        for name in _ANSWERING:
            stack.enter_context(replaced(torch.cuda, name, called(name)))
        stack.enter_context(replaced(torch.backends.cudnn, "flags", flags))
        stack.enter_context(replaced(torch.Tensor, "is_cuda", is_cuda))
        stack.enter_context(replaced(torch.amp.GradScaler, "__init__", made("GradScaler")))
        stack.enter_context(replaced(torch.amp.GradScaler, "scale", scales))
        stack.enter_context(replaced(torch.amp.autocast_mode.autocast, "__init__", made("torch.autocast")))
        yield asked


@contextmanager
def doubting(places: Places) -> Iterator[Asked]:
    """Note what the simulated device says that it does not know while the block runs."""
    doubted: Asked = {}

    def tell(text: str, line: tuple[str, int] | None) -> None:
        doubted.setdefault(text, places.of(sys._getframe(1)).frame())

    doubt = driver().doubt
    with doubt(tell) if doubt is not None else nullcontext():
        yield doubted


def _outside(frame: FrameType | None) -> FrameType | None:
    """The first frame that is none of torch's."""
    while frame is not None and package_of(frame.f_code.co_filename) == "torch":
        frame = frame.f_back
    return frame
