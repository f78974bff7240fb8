"""Values that a function reads of objects of Python's own library: a log's level, a table, a method of a module."""

from __future__ import annotations

import calendar
import logging
import mimetypes
import queue
import statistics
import threading
import weakref
from collections.abc import Callable
from typing import Any

Place = tuple[Callable[[], Any], Callable[[float], Any]]


def of_logger() -> Place:
    logger = logging.getLogger("tests.places.one")
    logger.setLevel(1)
    return lambda: 5.0 if logger.isEnabledFor(2) else 1.0, lambda v: logger.setLevel(int(v))


def of_logger_by_name() -> Place:
    logging.getLogger("tests.places.two").setLevel(1)
    return (
        lambda: logging.getLogger("tests.places.two").getEffectiveLevel(),
        lambda v: logging.getLogger("tests.places.two").setLevel(int(v)),
    )


def of_logger_with_more() -> Place:
    logger = logging.getLogger("tests.places.three")
    adapter = logging.LoggerAdapter(logger, {})
    logger.setLevel(1)
    return lambda: 5.0 if adapter.isEnabledFor(2) else 1.0, lambda v: logger.setLevel(int(v))


def of_log_handler() -> Place:
    handler = logging.NullHandler()
    return lambda: 1.0 + handler.level, lambda v: handler.setLevel(int(v))


def of_library_table() -> Place:
    mimetypes.types_map[".of-a-test"] = "1.0"
    return lambda: float(mimetypes.types_map[".of-a-test"]), lambda v: mimetypes.types_map.update(
        {".of-a-test": str(v)}
    )


def of_library_method() -> Place:
    calendar.setfirstweekday(1)
    return lambda: 1.0 + calendar.firstweekday(), lambda v: calendar.setfirstweekday(int(v))


def of_library_slots() -> Place:
    normal: Any = statistics.NormalDist(1.0, 1.0)
    return lambda: normal.mean, lambda v: setattr(normal, "_mu", v)


def of_barrier() -> Place:
    held = {"barrier": threading.Barrier(2)}
    return (
        lambda: held["barrier"].parties + (5.0 if held["barrier"].broken else 0.0),
        lambda v: held["barrier"].abort() if v == 2 else held["barrier"].reset(),
    )


def of_room_in_a_queue() -> Place:
    waiting: queue.Queue[Any] = queue.Queue(1)
    return lambda: 5.0 if waiting.maxsize > 2 else 1.0, lambda v: setattr(waiting, "maxsize", int(v))


def of_finalizer() -> Place:
    held = {"one": threading.Event()}
    finalizer = weakref.finalize(held["one"], int)
    return lambda: 5.0 if finalizer.alive else 1.0, lambda v: held.clear()
