"""What the user's source says about a failure that its message does not: read around the lines of a traceback."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.evidence import OTHERS_MEMORY, OTHERS_QUERY, OTHERS_WAIT, RAW_CALL

_CAPTURES = ("graph", "capture")
_STREAMS = ("stream", "StreamContext")
_RAW = re.compile(r"cu(da)?(Mem|Malloc|Free|Host|Profiler|DeviceSynchronize|StreamSynchronize|StreamQuery|EventQuery)")
_THREADS = {"Thread", "Timer", "ThreadPoolExecutor", "submit", "run_in_executor", "to_thread"}
_ASKS = {"query", "elapsed_time"}
_MAKES = {"empty", "zeros", "ones", "full", "rand", "randn", "tensor", "arange", "to", "cuda", "clone", "pin_memory"}
_ANOMALY = ("detect_anomaly", "set_detect_anomaly")
_FORKS = ("wait_stream", "wait_event")
_TOLD = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]+)(?:\n[ \t]+([^\n]+))?')


def is_aside(entries: Sequence[TracebackType]) -> bool:
    """Whether the innermost ``with`` around what ran, of a stream or of a capture, is one of a stream never forked.

    ``entries`` are those of the user's own code, outermost first.
    """
    for entry in reversed(entries):
        frame, line = entry.tb_frame, entry.tb_lineno
        nodes = list(nodes_of(frame.f_code))
        around = [n for n in nodes if isinstance(n, ast.With) and n.body[0].lineno <= line <= (n.end_lineno or 0)]
        for statement in sorted(around, key=lambda n: n.lineno, reverse=True):
            for item in reversed(statement.items):
                value = item.context_expr
                called = last_name(value.func) if isinstance(value, ast.Call) else ""
                if called in _CAPTURES:
                    return False
                if called in _STREAMS and isinstance(value, ast.Call) and value.args:
                    return not _is_forked(ast.unparse(value.args[0]), nodes, statement.lineno)
                if not called and _is_stream(_value_of(value, {**frame.f_globals, **frame.f_locals})):
                    return not _is_forked(ast.unparse(value), nodes, statement.lineno)
    return False


def spoiled_by(entries: Sequence[TracebackType]) -> set[str]:
    """What in the body of a capture, or in functions that it names, may have spoiled it without raising there."""
    found: list[ast.AST] = []
    names: dict[str, Any] = {}
    for entry in entries:
        frame, line = entry.tb_frame, entry.tb_lineno
        nodes = list(nodes_of(frame.f_code))
        names |= {**frame.f_globals, **frame.f_locals}
        captures = [n for n in nodes if isinstance(n, ast.With) and n.lineno <= line <= (n.end_lineno or 0)]
        for statement in captures:
            if any(
                isinstance(i.context_expr, ast.Call) and last_name(i.context_expr.func) in _CAPTURES
                for i in statement.items
            ):
                found += [inner for part in statement.body for inner in ast.walk(part)]
    for node in list(found):  # and the functions that are named there, one step far
        value = names.get(node.id) if isinstance(node, ast.Name) else None
        found += nodes_of(value.__code__) if isinstance(value, FunctionType) else ()
    used = {last_name(node) for node in found if isinstance(node, (ast.Name, ast.Attribute))}
    hints = {RAW_CALL} if any(map(_RAW.match, used)) else set()
    if not used & _THREADS:
        return hints
    waits = [n for n in found if isinstance(n, ast.Attribute) and n.attr == "synchronize"]
    if any(isinstance(_value_of(node.value, names), ModuleType) for node in waits):
        return hints | {OTHERS_WAIT}
    if waits or used & _ASKS:
        return hints | {OTHERS_QUERY}
    return hints | {OTHERS_MEMORY} if used & _MAKES else hints


def looks_for_nan(entries: Sequence[TracebackType]) -> bool:
    """Whether anomaly mode is on, or is by one of these functions, which have left it since."""
    import torch

    names = {name for entry in entries for name in entry.tb_frame.f_code.co_names}
    looks = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()  # the latter alone is always so
    return looks or not names.isdisjoint(_ANOMALY)


def never_begins(files: Iterable[str]) -> bool:
    """Whether none of these files begins a capture by hand."""
    return not any(map(_begins, files))


def _begins(file: str) -> bool:
    text = linecache.getlines(file)
    tree = tree_of(file) if any("capture_begin" in line for line in text) else None
    return any(isinstance(n, ast.Attribute) and n.attr == "capture_begin" for n in ast.walk(tree)) if tree else False


def told_places(message: str) -> list[tuple[str, int, str, str]]:
    r"""(file, line, function, text) of every place that a message quotes from a stack.

    >>> told_places('skipped. Found from :\n   File "a.py", line 7, in body\n    x.add_(1)\n')
    [('a.py', 7, 'body', 'x.add_(1)')]
    """
    return [(file, int(line), name, (text or "").strip()) for file, line, name, text in _TOLD.findall(message)]


def _is_forked(stream: str, nodes: Sequence[ast.AST], before: int) -> bool:
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.lineno > before:
            continue
        if node.func.attr in _FORKS and ast.unparse(node.func.value) == stream:
            return True
        if node.func.attr == "wait" and any(ast.unparse(argument) == stream for argument in node.args):
            return True
    return False


def _value_of(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Attribute):
        return getattr(_value_of(node.value, names), node.attr, None)
    return names.get(node.id) if isinstance(node, ast.Name) else None


def _is_stream(value: Any) -> bool:
    return hasattr(value, "wait_stream") and hasattr(value, "stream_id")
