"""Lines that read, or fill, pinned memory through an array of NumPy's while a copy of it may be under way.

No operation shows it: ``self.scores.argmax(1)``, of ``self.scores = self.host.numpy()`` in ``__init__``.
"""

from __future__ import annotations

import ast
import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.captured_entries import above_of
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.short_names import first_of
from paramgraph_kit.driver.files import is_library

_MOST = 20_000  # lines that are looked at in a call
_LOOKS = ("T", "mT", "real", "imag", "flat")
_CALLED = ("reshape", "view", "ravel", "squeeze", "transpose", "swapaxes", "diagonal")  # that copy nothing
_ABOUT = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags", "base", "ctypes", "data")
_FILLS = ("fill", "put", "itemset", "sort", "partition", "setfield", "byteswap")
_HANDS_ON = ("from_numpy", "as_tensor", "asarray", "frombuffer", "id", "type", "len", "isinstance", "memoryview")
_KEEPS = ("append", "put", "put_nowait", "add", "insert", "submit", "set_result", "extend", "setdefault", "appendleft")
Memory = dict[int, range]  # by what names it: where it lies
Looked = tuple[int, bool]  # memory, and whether it is written


class ArrayLines:
    """Goes along the lines of the user's that run while there is such memory, and says which of them use it."""

    def __init__(
        self,
        place_of: Callable[[FrameType], Place],
        memory: Callable[[], Memory],
        used: Callable[[int, bool, Place], None],
    ) -> None:
        self._place_of, self._memory, self._used = place_of, memory, used
        self._threads: dict[int, Any] = {}  # those whose lines are looked at, each with who looked at them before
        self._open: dict[int, tuple[FrameType, Place, list[Looked]]] = {}  # by frame: what its current line uses
        self._seen = 0

    def watch(self) -> None:
        """Look at the lines of this thread from here on."""
        thread, before = threading.get_ident(), sys.gettrace()
        if thread in self._threads or "numpy" not in sys.modules or self._seen >= _MOST:
            return
        if before is not None and not getattr(before, "__module__", "").startswith(__name__.partition(".")[0]):
            return  # a debugger of the user's goes ahead
        self._threads[thread] = before
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not is_library(frame.f_code.co_filename):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._enter)

    def stop(self) -> None:
        """Look no more: other threads notice at their next line."""
        before = self._threads.pop(threading.get_ident(), None)
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(before)

    def end(self) -> None:
        """A call has ended."""
        self.stop()
        self._threads.clear()
        self._open.clear()

    def _enter(self, frame: FrameType, event: str, given: Any) -> Any:
        if (thread := threading.get_ident()) not in self._threads:
            self.stop()
            return None
        if (before := self._threads[thread]) is not None:
            before(frame, event, given)
        return self._line if not is_library(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, given: Any) -> Any:
        if threading.get_ident() not in self._threads:
            return None
        if event not in ("line", "return"):
            return self._line
        self._seen += 1
        if (known := self._open.pop(id(frame), None)) is not None:
            _, place, looked = known
            for key, writes in looked:
                self._used(key, writes, place)  # where it has ended, and nobody has waited on the way
        memory = self._memory()
        if not memory or self._seen >= _MOST:
            self.stop()
            return None
        if event == "line" and (found := [*_looked(frame, memory)]):
            self._open[id(frame)] = frame, self._place_of(frame), found
        return self._line


def lies(key: Any) -> range:
    """Where memory lies that a weak reference names."""
    storage = torch.UntypedStorage._new_with_weak_ptr(key.cdata)
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) if storage is not None else range(0)


def arrays_in(value: Any) -> Iterator[int]:
    """Where the arrays lie that a value has: NumPy's, and looks of Python's own at memory."""
    leaves = [*tree_leaves(value)]
    with suppress(Exception):  # of a class of the user's
        leaves += tree_leaves(
            [attributes_of(each) for each in leaves if not is_a(each, (torch.Tensor, torch.nn.Module))]
        )
    for each in leaves:
        whole: Any = sys.modules["numpy"].asarray(each) if is_a(each, memoryview) and "numpy" in sys.modules else each
        if type(whole).__module__ == "numpy" and hasattr(whole, "__array_interface__") and whole.nbytes:
            yield whole.__array_interface__["data"][0]


def _looked(frame: FrameType, memory: Memory) -> Iterator[Looked]:
    """The memory that the line uses at which a function is."""
    paths = _paths(frame.f_code).get(frame.f_lineno, ())
    known = frame.f_locals if paths else {}
    for node, above in paths:
        value = path_value(node, known, frame.f_globals)
        if type(value).__module__ != "numpy" or not hasattr(value, "__array_interface__"):
            continue
        at = value.__array_interface__["data"][0]
        for key in (key for key, where in memory.items() if at in where and value.nbytes):
            way = _way(node, above, value.ndim, lambda path: path_value(path, known, frame.f_globals))
            yield from [(key, way == "fills")] if way else []


@lru_cache(256)
def _paths(code: CodeType) -> dict[int, list[tuple[ast.expr, tuple[ast.AST, ...]]]]:
    """By line, the names that a function reads there, each with what it stands in, innermost first."""
    found: dict[int, list[tuple[ast.expr, tuple[ast.AST, ...]]]] = {}
    for node in nodes_of(code):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and first_of(node):
            around, inner = list[ast.AST](), above_of(code, node)
            while inner is not None and not isinstance(inner, (ast.stmt, ast.comprehension)):
                around.append(inner)
                inner = above_of(code, inner)
            around += [inner] if inner is not None else []
            found.setdefault(node.lineno, []).append((node, tuple(around)))
    return found


def _way(node: ast.AST, around: tuple[ast.AST, ...], rank: int, value: Callable[[ast.expr], Any]) -> str:
    """What is done to an array: "reads", "fills", or "" where it is only looked at, kept or handed on."""
    if not around:
        return ""
    above, rest = around[0], around[1:]
    call = rest[0] if rest and isinstance(rest[0], ast.Call) and rest[0].func is above else None
    match above:
        case ast.Attribute(attr=name):
            if name in _LOOKS or (name in _CALLED and call is not None):
                return _way(call or above, rest[call is not None :], rank, value)
            if name in _ABOUT or call is None:
                return ""
            return "fills" if name in _FILLS else "reads"
        case ast.Subscript(ctx=ast.Load()) if above.value is node:
            keys = above.slice.elts if isinstance(above.slice, ast.Tuple) else [above.slice]
            left = rank - sum(not isinstance(key, ast.Slice) and not _widens(key) for key in keys)
            picks = any(isinstance(key, (ast.List, ast.Compare)) for key in keys)
            return "reads" if left <= 0 or picks else _way(above, rest, left, value)
        case ast.Subscript() if above.value is node:
            return "fills"
        case ast.AugAssign():
            return "fills" if above.target is node else "reads"
        case ast.Call() if above.func is not node:
            return "reads" if _reads(above, node, value) else ""
        case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.FormattedValue():
            return "reads"
        case ast.For() | ast.comprehension():
            return "reads" if above.iter is node and rank <= 1 else ""
        case ast.Assign():
            is_filled = isinstance(above.targets[0], ast.Subscript) and above.value is node
            return "reads" if is_filled and _is_array(value(above.targets[0].value)) else ""  # type: ignore[attr-defined]
    return ""


def _widens(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value in (None, ...)


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy"


def _reads(call: ast.Call, node: ast.AST, value: Callable[[ast.expr], Any]) -> bool:
    """Whether a call reads an array that it is given: what is the user's own is looked at inside."""
    name = last_name(call.func) or ""
    if name in _HANDS_ON or (name in _KEEPS and isinstance(call.func, ast.Attribute)):
        return False
    if isinstance(call.func, ast.Attribute) and name == "copyto" and call.args[:1] == [node]:
        return False
    function = value(call.func)
    if function is NOTHING:
        return isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)
    if isinstance(function, (FunctionType, MethodType)):
        return is_library(function.__code__.co_filename)
    return not isinstance(function, type) or is_library(
        getattr(sys.modules.get(function.__module__), "__file__", "") or ""
    )
