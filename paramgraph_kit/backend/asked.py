"""What can only be asked: objects that keep their state out of Python's dictionaries, and functions of the process."""

from __future__ import annotations

import abc
import array
import collections
import concurrent.futures
import ctypes
import decimal
import functools
import gc
import io
import logging
import os
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paramgraph_kit.backend.plain import PLAIN, is_table, same

# Of torch.nn.modules.module: hooks that run for every module; every optimizer has its own.
GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks",
                "_global_backward_hooks")  # fmt: skip
LARGE = 1 << 16  # bytes of a buffer: more would take longer to compare in each call than a graph saves
Ask = Callable[[], Any]


def hooks_of_all() -> list[tuple[str, dict[Any, Any]]]:
    """What runs around every module and every optimizer of the process, with names."""
    modules, optimizers = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    names = [(modules, name) for name in GLOBAL_HOOKS]
    names += [(optimizers, f"_global_optimizer_{when}_hooks") for when in ("pre", "post")]
    return [(f"{space.__name__}.{name}", getattr(space, name)) for space, name in names]


def _decimals() -> tuple[Any, ...]:
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp


def _thread() -> tuple[Any, ...]:
    return threading.get_ident(), threading.current_thread().name


def _logger(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.getEffectiveLevel(), logger.disabled, logger.manager.disable


def _loggers() -> tuple[Any, ...]:
    known = logging.root.manager.loggerDict.copy().items()
    levels = [(name, each.level, each.disabled) for name, each in known if isinstance(each, logging.Logger)]
    return _logger(logging.root), frozenset(each for each in levels if any(each[1:]))


# Functions that answer for the whole process or thread. They are asked wherever code names them.
ANSWERS: dict[Any, Ask] = {
    each: each
    for each in (
        *(torch.initial_seed, torch.get_num_threads, torch.get_num_interop_threads, torch.is_anomaly_enabled),
        *(torch.is_anomaly_check_nan_enabled, threading.get_ident, threading.active_count, sys.getrecursionlimit),
        *(os.getpid, gc.isenabled, gc.get_threshold, sys.getswitchinterval, np.geterr),
    )
} | {threading.current_thread: _thread, decimal.getcontext: _decimals, logging.getLogger: _loggers}
decimals: Ask = _decimals
registered: Ask = abc.get_cache_token  # of abstract classes: it changes with who counts as an instance

_LOCKS = (type(threading.Lock()),)
_BYTES: tuple[Any, ...] = (
    array.array,
    bytearray,
    memoryview,
    ctypes.Structure,
    ctypes.Union,
    ctypes.Array,
    ctypes.c_int.__base__,
)
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_THREADS = ("threading", "logging", "concurrent", "multiprocessing", "asyncio", "queue")  # what others write as well
# Objects of libraries, and what they answer; it is looked into further.
_TABLE: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (threading.Event, lambda x: x.is_set()),
    (_LOCKS, lambda x: x.locked()),
    (threading.Semaphore, lambda x: x._value),
    (threading.Thread, lambda x: (x.name, x.is_alive(), x.daemon)),
    (logging.Logger, _logger),
    (logging.LoggerAdapter, lambda x: _logger(x.logger) if isinstance(x.logger, logging.Logger) else None),
    (weakref.finalize, lambda x: x.alive),
    (queue.Queue, lambda x: tuple(x.queue)),
    (queue.SimpleQueue, lambda x: x.qsize()),
    (concurrent.futures.Future, lambda x: x.done()),
    ((io.StringIO, io.BytesIO), lambda x: "" if x.closed else (x.getvalue(), x.tell())),
    (_BYTES, lambda x: (len(memoryview(x)) if isinstance(x, array.array) else 0, bytes(x))),
    (functools.partial, lambda x: (x.func, x.args, x.keywords)),
    (collections.defaultdict, lambda x: x.default_factory),
    (BaseException, lambda x: (x.args, x.__cause__)),
    (types.MappingProxyType, lambda x: (tuple(x), tuple(x.values()))),
    (_VIEWS, tuple),
    (weakref.ReferenceType, lambda x: x() is not None),
    ((weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary), lambda x: tuple(x.data)),
    (weakref.WeakKeyDictionary, lambda x: tuple(x.data.values())),
)


def questions(value: Any) -> list[Ask]:
    """What to ask of an object whose state no dictionary shows; nothing of others.

    >>> kept = threading.Event()
    >>> ask, *_ = questions(kept)
    >>> kept.set()
    >>> ask()
    True
    """
    found: list[Ask] = [functools.partial(ask, value) for kinds, ask in _TABLE if isinstance(value, kinds)]
    module = type(value).__module__ or ""  # of a class that says None there, too
    held = getattr(value, "get_obj", None) if module.startswith("multiprocessing") else None
    if held is not None:
        return [*found, lambda: bytes(held())]
    if module.partition(".")[0] in _THREADS and not isinstance(value, threading.Thread):
        found += [functools.partial(_plain_parts, value)] if _plain_parts(value) else []
    return found


def _plain_parts(value: Any) -> tuple[Any, ...]:
    """What an object holds that is a plain value: a barrier's count, a handler's level."""
    held = object.__getattribute__(value, "__dict__") if hasattr(type(value), "__dict__") else {}
    return tuple((key, part) for key, part in list(held.items()) if isinstance(part, PLAIN)) if held else ()


_OF_MODULES = (*PLAIN, list, set, types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType,
               types.MethodType, logging.Logger)  # fmt: skip


def is_setting(value: Any) -> bool:
    """Whether what a library's module holds under a name can be looked at: plain values, tables of these, functions.

    >>> is_setting(logging.root), is_setting({"dpi": 80}), is_setting(object())
    (True, True, False)
    """
    return isinstance(value, _OF_MODULES) or is_table(value)


def _bytes_back(value: Any, then: tuple[int, bytes]) -> None:
    if isinstance(value, bytearray):  # it may have another length by now
        value[:] = then[1]
    elif isinstance(value, array.array):
        value[:] = array.array(value.typecode, then[1])
    elif not memoryview(value).readonly:
        memoryview(value).cast("B")[:] = then[1]


def _file_back(file: Any, then: Any) -> None:
    if then and not file.closed:
        text, position = then
        file.seek(0)
        file.truncate()
        file.write(text)
        file.seek(position)


def _queue_back(queue: Any, then: tuple[Any, ...]) -> None:
    left = tuple(queue.queue)  # others may have put more meanwhile, which stays
    taken = next(n for n in range(len(then) + 1) if left[: len(then) - n] == then[n:])
    for item in reversed(then[:taken]):
        queue.queue.insert(0, item)


# How what a call has written is undone. What other threads wait for is not: an event, a lock, what a future holds.
_BACK: tuple[tuple[Any, Callable[[Any, Any], None]], ...] = (
    ((io.StringIO, io.BytesIO), _file_back),
    (_BYTES, _bytes_back),
    (queue.Queue, _queue_back),
    (BaseException, lambda x, then: setattr(x, "args", then[0])),
)


def put_back(value: Any, then: Any) -> None:
    """Let an object answer what it answered, as far as that may be undone.

    >>> held = bytearray(b"one")
    >>> held[0] = 0
    >>> put_back(held, (0, b"one"))
    >>> held
    bytearray(b'one')
    """
    back = next((back for kinds, back in _BACK if isinstance(value, kinds)), None)
    if back is not None:
        back(value, then)


def nbytes(value: Any) -> int:
    """The size of a buffer, 0 of what is none."""
    return memoryview(value).nbytes if isinstance(value, _BYTES) else 0


class Answer:
    """What is answered; the same object while it is the same.

    >>> answer = Answer(lambda: (1.0, "one"))
    >>> answer() is answer()
    True
    """

    def __init__(self, ask: Ask, owner: Any = None) -> None:
        self._ask = ask
        self._last = ask()
        self.owner = owner  # the object that is asked

    def __call__(self) -> Any:
        """Today's."""
        now = self._ask()
        if not same(now, self._last):
            self._last = now
        return self._last

    def put_back(self, then: Any) -> None:
        """Let it answer that again."""
        put_back(self.owner, then)


class Contents:
    """The bytes of an array; the same object while they are the same."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.owner, self._last = array, b""

    def __call__(self) -> bytes:
        """All that tells it from another one."""
        now = repr((self.owner.shape, self.owner.dtype)).encode() + self.owner.tobytes()
        if now != self._last:
            self._last = now
        return self._last

    def put_back(self, then: bytes) -> None:
        """Let it hold that again, if it has the shape that it had."""
        array = self.owner
        if array.flags.writeable and len(then) == len(self()):
            array[...] = np.frombuffer(then[len(then) - array.nbytes :], array.dtype).reshape(array.shape)
