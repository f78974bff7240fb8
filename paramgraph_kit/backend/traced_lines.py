"""Which line of the user's, in which module, asks for each operation of a trace: noted on the trace's nodes.

Dynamo notes this for what it traces. A function that is traced as it is has only its stack, looked at when it calls
torch. What autograd adds for the backward gets the line of the operation that it belongs to, by torch.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import nn
from torch.fx import traceback

from paramgraph_kit.driver.files import is_library, is_library_code
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

_CALL_OF_MODULE: Any = nn.Module.__call__
_GETATTR_OF_MODULE: Any = nn.Module.__getattr__
_TWICE = "a function of torch's and calls that, which a trace would run twice: pgk.parameterize(fn, state=...) does not"


@contextmanager
def lines_noted(paths: Mapping[int, str], outermost: str) -> Iterator[None]:
    """Note them for what this thread traces in the block.

    Args:
        paths: of the modules, by their ids.
        outermost: the file that calls the user's function; what is further out did not ask.
    """
    kind, thread = torch_name("TorchFunctionMetadataMode"), threading.get_ident()
    plain: Callable[..., Any] = kind.__torch_function__

    def call(mode: Any, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if threading.get_ident() != thread:
            return plain(mode, function, kinds, args, kwargs)
        if (named := _replaced(function)) and sys._getframe(2).f_code is not named.__code__:
            raise RefusedError(Reason("not-traceable", f"{named.__name__}() is in the place of {_TWICE}"))
        line, stack = _asked_by(sys._getframe(1), paths, outermost)
        nodes = mode.tracer.graph._root
        last = nodes._prev
        traceback.set_stack_trace([line])  # where torch keeps that: for the backward
        try:
            return plain(mode, function, kinds, args, kwargs)
        finally:
            traceback.set_stack_trace([])
            node = nodes._prev
            while node is not last and node is not nodes:
                if line and not node.stack_trace:
                    node.stack_trace = line
                if stack:
                    node.meta.setdefault("nn_module_stack", stack)
                node = node._prev

    with mock.patch.object(kind, "__torch_function__", call):
        yield


def refuse_replaced() -> None:
    """Raise RefusedError where what modules do when they are called is not what traces call."""
    if nn.Module.__call__ is not _CALL_OF_MODULE or nn.Module.__getattr__ is not _GETATTR_OF_MODULE:
        text = "torch.nn.Module.__call__ or __getattr__ is replaced, and a trace would call torch's own"
        raise RefusedError(Reason("not-traceable", f"{text}: pgk.parameterize(fn, state=...) calls yours"))


def _replaced(function: Any) -> types.FunctionType | None:
    """A function of the user's that torch found where one of its own was."""
    function = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if isinstance(function, types.FunctionType) and not is_library_code(function.__code__, function.__globals__):
        return function
    return None


def _asked_by(frame: Any, paths: Mapping[int, str], outermost: str) -> tuple[str, dict[str, tuple[str, type]]]:
    """The innermost line of the user's own as Python prints it, and the innermost module whose path is known."""
    line: str = ""
    stack: dict[str, tuple[str, type]] = {}
    while frame is not None and frame.f_code.co_filename != outermost and not (line and stack):
        code = frame.f_code
        if code is _CALL_OF_MODULE.__code__:
            module = frame.f_locals.get("self")
            if not stack and (path := paths.get(id(module))):
                stack = {path: (path, type(module))}
        elif not line and not is_library(code.co_filename):
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            line = f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n    {text}\n'
        frame = frame.f_back
    return line, stack
