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

    def flags(function: Any) -> Any:
        def set_for_a_while(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("benchmark", args[1] if len(args) > 1 else False):
                note("cudnn.flags(benchmark=True)", sys._getframe(1))
            return function(*args, **kwargs)

        return set_for_a_while

    if driver().device.type == CUDA:
        yield asked
        return
    with ExitStack() as stack:
        for name in _ANSWERING:
            stack.enter_context(replaced(torch.cuda, name, called(name)))
        stack.enter_context(replaced(torch.backends.cudnn, "flags", flags))
        stack.enter_context(replaced(torch.Tensor, "is_cuda", is_cuda))
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
