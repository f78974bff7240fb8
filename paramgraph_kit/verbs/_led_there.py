"""The line that led to a failure which CUDA tells of later: read from the text of what ran in the capture.

An unjoined stream is found where the capture ends, and what a thread has spoiled at whatever comes next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType, FunctionType, MethodType
from typing import Any

from torch.nn import Module

from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.rewrite.source.edits import Source, path_of, within
from paramgraph_kit.trace.model import Failure, Frame

_DEEP = 4
_MOST = 40  # functions that are looked into
_WAITS = ("wait_event", "wait")
_STARTS = ("Thread", "submit", "run_in_executor", "to_thread")
_TOUCHES = re.compile(r"\.(?:to|cuda|cpu|item|tolist|synchronize|pin_memory|empty_cache)\(")


def led_there(failure: Failure, frame: FrameType) -> Failure:
    """The same at the line that led to it, where exactly one can have; else as it was."""
    if failure.code == "unjoined-work":
        return _unjoined(failure, frame)
    if failure.code == "invalidated":
        return _spoiled(failure, frame)
    return failure


@dataclass(slots=True)
class _Part:
    """Statements that ran, and what names mean in them."""

    source: Source
    body: list[ast.stmt]
    space: dict[str, Any]
    name: str

    def value(self, node: ast.expr) -> Any:
        first, *rest = path_of(node).split(".")
        found = self.space.get(first)
        for each in rest:
            found = getattr(found, each, None)
        return found

    def frame(self, node: ast.stmt) -> Frame:
        text = self.source.lines[node.lineno - 1].strip()
        return Frame(display_name(self.source.file), node.lineno, self.name, text)


def _unjoined(failure: Failure, frame: FrameType) -> Failure:
    parts = _parts(frame, failure, in_block=True)
    found = list[tuple[_Part, ast.With, ast.expr]]()
    joined, waited = set[int](), list[Any]()
    for part in parts:
        for node in (n for each in part.body for n in within(each)):
            if isinstance(node, ast.With) and (stream := _stream_of(node)) is not None:
                found.append((part, node, stream))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                waited += [part.value(node.func.value)] if node.func.attr in _WAITS else []
                if node.func.attr == "wait_stream" and len(node.args) == 1:
                    joined.add(id(part.value(node.args[0])))
    left = [(part, node, stream) for part, node, stream in found if id(part.value(stream)) not in joined]
    left = [each for each in left if each[0].value(each[2]) is not None]
    sides = {id(part.value(stream)) for part, _, stream in found}
    if any(id(each) not in sides for each in waited) or len({id(part.value(stream)) for part, _, stream in left}) != 1:
        return failure  # or an event joins one of them
    part, node, stream = left[-1]
    cuda = path_of(node.items[0].context_expr.func).rpartition(".")[0]  # type: ignore[attr-defined]
    join = f"{cuda + '.' if cuda else 'torch.cuda.'}current_stream().wait_stream({part.source.text(stream)})"
    last = node.body[-1]
    text = f"before  {part.frame(last).text}\nafter   the same, and behind the block of line {node.lineno}: `{join}`"
    cause = (
        "Work was forked to another stream and nothing waits for it. CUDA finds this only at the end of the capture."
    )
    return replace(failure, frame=part.frame(last), cause=cause, fix=text)


def _stream_of(node: ast.With) -> ast.expr | None:
    call = node.items[0].context_expr
    named = isinstance(call, ast.Call) and path_of(call.func).rpartition(".")[2] == "stream"
    return (
        call.args[0] if named and isinstance(call, ast.Call) and len(call.args) == 1 and path_of(call.args[0]) else None
    )


def _spoiled(failure: Failure, frame: FrameType) -> Failure:
    at = failure.frame
    found = list[tuple[_Part, ast.stmt, FunctionType]]()
    for part in _parts(frame, failure, in_block=False):
        for node in (n for each in part.body for n in within(each) if isinstance(n, ast.Call)):
            if path_of(node.func).rpartition(".")[2] not in _STARTS:
                continue
            given = [*node.args, *(each.value for each in node.keywords if each.arg in ("target", "func"))]
            targets = [_function(part.value(each)) for each in given if path_of(each)]
            statement = part.source.statement_of(node)
            found += [(part, statement, each) for each in targets if each is not None and statement is not None]
    if at is None or len({id(each[2]) for each in found}) != 1:
        return failure
    part, starts, target = found[0]
    inside = _part_of(target, None)
    lines = [n for each in (inside.body if inside else ()) for n in within(each) if isinstance(n, ast.stmt)]
    touching = [n for n in lines if inside and not hasattr(n, "body") and _TOUCHES.search(inside.source.text(n))]
    if inside is None or not touching:
        return failure
    name = target.__name__
    words = (
        f"line {starts.lineno} has another thread run `{name}` while the capture is under way, and this line needs the "
        f"whole device there: call `{name}` before the capture, and before each launch, and copy what it brings into a "
        "tensor that stays, which the graph reads"
    )
    text = f"before  {inside.frame(touching[0]).text}\nafter   {words}"
    cause = f"901 is only the echo of an earlier error, which was raised in another thread: `{name}` ran there."
    return replace(failure, frame=inside.frame(touching[0]), cause=cause, fix=text)


def _parts(frame: FrameType, failure: Failure, *, in_block: bool) -> Iterator[_Part]:
    """What runs in the block at the failure's line, or in its function; and what that calls."""
    source, line = Source.of(frame.f_code.co_filename), failure.frame.line if failure.frame is not None else 0
    if source is None:
        return
    space = {**frame.f_globals, **frame.f_locals}
    tree = source.tree
    around = [n for n in ast.walk(tree) if isinstance(n, (ast.With, ast.FunctionDef)) and _covers(n, line)]
    blocks = [n for n in around if isinstance(n, ast.With if in_block else ast.FunctionDef)]
    body = blocks[-1].body if blocks else [] if in_block else tree.body
    waiting, seen = [(_Part(source, body, space, frame.f_code.co_name), 0)], set[Any]()
    while waiting and len(seen) < _MOST:
        part, deep = waiting.pop(0)
        yield part
        for node in (n for each in part.body for n in within(each) if isinstance(n, ast.Call) and deep < _DEEP):
            called = part.value(node.func)
            owner = called if isinstance(called, Module) else getattr(called, "__self__", None)
            function = _function(called)
            if function is None or function.__code__ in seen or is_library(function.__code__.co_filename):
                continue
            seen.add(function.__code__)
            if (inner := _part_of(function, owner)) is not None:
                waiting.append((inner, deep + 1))


def _covers(node: ast.With | ast.FunctionDef, line: int) -> bool:
    return node.lineno <= line <= (node.lineno if isinstance(node, ast.With) else node.end_lineno or 0)


def _function(called: Any) -> FunctionType | None:
    """The function of Python's that a call runs."""
    called = type(called).forward if isinstance(called, Module) else called
    called = called.__func__ if isinstance(called, MethodType) else called
    called = getattr(called, "__wrapped__", called)
    return called if isinstance(called, FunctionType) else None


def _part_of(function: FunctionType, owner: Any) -> _Part | None:
    source, code = Source.of(function.__code__.co_filename), function.__code__
    nodes = [n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)] if source is not None else []
    own = [n for n in nodes if n.name == code.co_name and n.lineno >= code.co_firstlineno]
    if source is None or not own:
        return None
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    space = {**function.__globals__, **{name: each.cell_contents for name, each in cells if _is_full(each)}}
    if owner is not None and code.co_argcount:
        space[code.co_varnames[0]] = owner
    return _Part(source, min(own, key=lambda n: n.lineno).body, space, code.co_name)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
