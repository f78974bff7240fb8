"""Exceptions of Python's on their way through torch's engine.

Autograd runs the backward of a device's tensors on a thread of its own. Where Python raises there, the engine puts the
device's stream back while the exception is still pending, and for a device in Python that calls Python again: torch
ends the process then. So the guard takes a pending exception aside, and whoever called ``backward()`` gets it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from paramgraph_kit.driver.torch_names import torch_name

CREATE_GRAPH, INPUTS = 3, 4  # their positions among the engine's arguments
REST_S = 0.01  # the engine's thread still has Python to call, which ends the process if that is about to exit
LONGEST_S = 2.0
_ENGINE = "pt_autograd"  # what torch calls its threads
_PRIVATEUSE1 = torch_name("DeviceType").PrivateUse1
_TYPE = re.compile(r"\[sim(\w+)Type ")
_taken: list[BaseException] = []

_kind, _value, _traceback = ctypes.py_object(), ctypes.py_object(), ctypes.py_object()
_references = (ctypes.byref(_kind), ctypes.byref(_value), ctypes.byref(_traceback))
_python = ctypes.PyDLL(None)
_normalize = _python.PyErr_NormalizeException
_normalize.restype = None


def _kind_of_device(_: int) -> Any:
    """The kind of device, told once an exception that was on its way has been fetched."""
    if _kind:
        _keep()
    return _PRIVATEUSE1


# One call takes the exception and makes the interpreter ready for the next one; nothing in Python may run before it:
# since 3.12 a function begins with the collector, and with the profilers of all threads, and either fails then.
_take = _python.PyErr_Fetch
_take.restype = _kind_of_device  # no argtypes: converting arguments calls functions


class DeviceGuard(torch_name("DeviceGuard")):  # type: ignore[misc]  # a class of torch's C++
    """Says which device it is for, also while an exception is on its way."""

    type_ = staticmethod(functools.partial(_take, *_references))


def outlive_threads() -> None:
    """Have torch make its stand-in for CUDA's guard on a thread that stays.

    A CUDA build without a GPU makes one when somebody first traces, and torch 2.11 keeps it with the thread that did:
    once that thread has ended autograd, which asks every kind of device, calls what is no more, and the process dies.
    """
    make = torch_name("_ensureCUDADeviceGuardSet")
    if threading.current_thread() is threading.main_thread():
        make()
        return
    made = threading.Event()

    def stay() -> None:
        make()
        made.set()
        threading.Event().wait()

    threading.Thread(target=stay, name="stand-in for CUDA's guard", daemon=True).start()
    made.wait()


def rest() -> None:
    """Wait until the engine's threads sleep.

    After ``backward()`` they let go of its nodes, and since torch 2.13 of their tensors' Python objects with these: in
    a process that is about to exit that is "terminate called without an active exception".
    """
    until = time.monotonic() + LONGEST_S
    time.sleep(REST_S)  # one that waits for the interpreter sleeps too, and gets it now
    while _at_work() and time.monotonic() < until:
        time.sleep(REST_S)


def _at_work() -> bool:
    """Whether one of them runs, or would if there were a core for it; nobody but Linux tells."""
    for task in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            name, _, fields = task.read_text().partition("(")[2].rpartition(")")
            if name.startswith(_ENGINE) and fields.split()[0] == "R":
                return True
    return False


def _in_cuda_s_words(error: RuntimeError) -> RuntimeError:
    """The same of a tensor that was written to meanwhile, as torch names one of CUDA's."""
    text = _TYPE.sub(r"[torch.cuda.\1Tensor ", str(error))
    return error if text == str(error) else RuntimeError(text)


def _keep() -> None:
    _normalize(*_references)
    error: BaseException = _value.value
    if _traceback:
        error.__traceback__ = _traceback.value
    _taken.append(error)
    for reference in (_kind, _value, _traceback):
        if reference:
            _python.Py_DecRef(reference)
            ctypes.memset(ctypes.byref(reference), 0, ctypes.sizeof(reference))


def install(
    begin: Callable[..., AbstractContextManager[None]],
    done: Callable[[Iterable[Any], Iterable[Any]], None],
) -> None:
    """Let ``backward()`` raise what was taken aside; ``done`` gets gradients with a graph, and what they are of."""
    name = "_engine_run_backward"
    run = torch_name(name)
    atexit.register(rest)

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _taken.clear()
        try:
            with begin(args[0], *args[INPUTS : INPUTS + 1], accumulates=bool(kwargs.get("accumulate_grad"))):
                results = run(*args, **kwargs)
        except SystemError:
            if not _taken:
                raise
            error = _taken[0]
            _taken.clear()
        except RuntimeError as written:
            error = _in_cuda_s_words(written)
            if error is written:
                del error  # with it this frame, and with that all of the graph, would wait for the collector
                raise
        else:
            if len(args) > CREATE_GRAPH and args[CREATE_GRAPH]:
                done(results or (), args[0])
            return results
        time.sleep(REST_S)
        try:
            raise error
        finally:
            del error

    for module in ("torch.autograd", "torch.autograd.graph"):
        setattr(importlib.import_module(module), name, run_backward)
