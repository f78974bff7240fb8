"""What is no problem but good to know: of a result, and of what the simulated device does not see."""

from __future__ import annotations

import ctypes
import dis
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, CoroutineType, GeneratorType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.absent import CUDA, Asked
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.places import codes_in
from paramgraph_kit.doctor.restore.host_state import DEEP
from paramgraph_kit.driver.select import driver

# These take "cuda" for the simulated device.
_AS_ON_A_GPU = ("autocast", "GradScaler", "custom_fwd", "custom_bwd", "get_autocast_dtype", "is_autocast_enabled")
_PAST_TORCH = ("ctypes", "cffi", "cuda", "cupy", "pycuda", "numba")


def notes_of(result: Any, operations: int, steps: Iterable[Step], functions: Iterable[Any], asked: Asked) -> list[str]:
    """Notes on what a function returned, after so many operations on the device, and on what it did unseen."""
    found = []
    if issubclass(type(result), (GeneratorType, CoroutineType)):
        found.append(f"it returns a {type(result).__name__}, which nothing has run: give what runs it")
    elif result is not None and not has_tensor(result) and operations:
        kind = type(result).__name__
        found.append(f"it returns a {kind} and no tensor: after a replay, only tensors have new values")
    return found if driver().device.type == "cuda" else [*found, *_unseen(steps, functions, asked)]


def doubts_of(doubted: Asked) -> list[str]:
    """Notes on what the simulated device does not know of a GPU, at which lines."""
    return [f"{text}{f' (at {frame.label()})' if frame else ''}" for text, frame in doubted.items()]


def has_tensor(value: Any, depth: int = 0) -> bool:
    """Whether something is a tensor or holds one; what is too deep to tell counts as one."""
    try:
        if isinstance(value, torch.Tensor) or depth > DEEP:
            return True
        if isinstance(value, dict):
            return any(has_tensor(part, depth + 1) for part in value.values())
        if isinstance(value, (list, tuple)):
            return any(has_tensor(part, depth + 1) for part in value)
        return any(isinstance(part, torch.Tensor) for part in vars(value).values())
    except Exception:  # an object without attributes, or one that answers as it likes
        return False


def _unseen(steps: Iterable[Step], functions: Iterable[Any], asked: Asked) -> Iterator[str]:
    """What a GPU would do and the simulated device does not."""
    for what, frame in asked.items():
        at = f" at {frame.label()}" if frame else ""
        yield f"{what}{at} does or answers something else on a GPU: what that leads to was not seen"
    for code in () if asked else codes_in(step.place.stack for step in steps):
        if any(isinstance(text, str) and text.partition(":")[0] == CUDA for text in _texts(code)):
            text = "and the device here is another one: what it compares with that takes other ways on a GPU"
            yield f"{code.co_name} names '{CUDA}', {text}"
    steps = list(steps)
    named = sorted({name for function in functions for name in _past_torch(function)})
    if named:
        yield f"it calls {', '.join(named)}, past torch: the simulated device does not see what that does in a capture"
    if torch.backends.cudnn.benchmark and any(step.on_device and "convolution" in step.name for step in steps):
        text = "cudnn.benchmark tries kernels at the first call of each shape, which a capture forbids"
        yield f"{text}: call it with every shape before"


def _past_torch(function: Any) -> Iterator[str]:
    """Names in a function that lead to C or to CUDA itself."""
    yield from (name for name in sorted(_imported(function.__code__)) if name in _PAST_TORCH)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        kind = type(value)  # which asks the object itself nothing
        is_past = issubclass(kind, ModuleType) and value.__name__.partition(".")[0] in _PAST_TORCH
        if is_past or issubclass(kind, ctypes.CDLL):
            yield name


@lru_cache(1024)
def _imported(code: CodeType) -> frozenset[str]:
    """The packages that a function imports itself."""
    own = (str(each.argval) for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
    inner = (_imported(part) for part in code.co_consts if isinstance(part, CodeType))
    return frozenset(name.partition(".")[0] for name in own).union(*inner)


def _texts(code: CodeType) -> Iterator[object]:
    """The constants that a function's code loads, but for what it gives to autocast, which takes it as on a GPU."""
    last = ""
    for each in dis.get_instructions(code):
        if each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")):
            last = str(each.argval)
        elif isinstance(each.argval, tuple):
            yield from each.argval
        elif isinstance(each.argval, str) and each.opname == "LOAD_CONST" and last not in _AS_ON_A_GPU:
            yield each.argval
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _texts(part)


def _names(code: CodeType) -> set[str]:
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(_names, inner))
