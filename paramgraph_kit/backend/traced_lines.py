"""Which line of the user's, in which module, asks for each operation of a trace: noted on the trace's nodes.

Dynamo notes this for what it traces. A function that is traced as it is has only its stack, looked at when it calls
torch. What autograd adds for the backward gets the line of the operation that it belongs to, by torch.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import nn
from torch.fx import traceback

from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.torch_names import torch_name

_CALL_OF_MODULE: Any = nn.Module.__call__


@contextmanager
def lines_noted(paths: Mapping[int, str], outermost: str) -> Iterator[None]:
    """Note them for what this thread traces in the block.

    Args:
        paths: of the modules, by their ids.
        outermost: the file that calls the user's function; what is further out did not ask.
    """
    kind, thread = torch_name("TorchFunctionMetadataMode"), threading.get_ident()
    plain: Callable[..., Any] = kind.__torch_function__

    def call(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if threading.get_ident() != thread:
            return plain(mode, function, types, args, kwargs)
        line, stack = _asked_by(sys._getframe(1), paths, outermost)
        nodes = mode.tracer.graph._root
        last = nodes._prev
        traceback.set_stack_trace([line])  # where torch keeps that: for the backward
        try:
            return plain(mode, function, types, args, kwargs)
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
