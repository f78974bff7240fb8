"""Numbers and words of the host's among results, which another call returns others of: a replay has those of before."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, here, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.one_call import Call

# These tell what comes to be returned, at the line where it does.
_TELL = frozenset(("host-counter", "sync-item", "copy-to-cpu", "host-random", "scalar-frozen", "data-dependent-branch"))
RETURNED = "in the next: a replay returns no other"  # in a message
_BEHIND = "the same behind each launch, where Python runs: return the tensors alone from what is captured"
_DEEP = 4


def problems(function: Any, calls: tuple[Call, Call], told: Collection[Failure]) -> list[Failure]:
    """The first of them, at the line that returns it; nothing where a problem is told that may be its cause."""
    first, second = calls
    if any(f.code in _TELL for f in told) or first.random_drawn or second.random_drawn or second.ended is not None:
        return []
    at = _returned_at(function)
    for path, then, now in _moved(first.result, second.result, "", _DEEP) if at is not None else ():
        text = f"its result{path} is {then!r} in one call and {now!r} {RETURNED}"
        words = f"before  {at.text if at else ''}\nafter   {_BEHIND}"
        return [replace(BY_ID["host-counter"].failure(text, at), fix=words)]
    return []


def _moved(then: Any, now: Any, path: str, deep: int) -> Iterator[tuple[str, Any, Any]]:
    kind = type(then)
    if kind is not type(now) or not deep:
        return
    if kind in (int, float, str, bool, bytes):
        if then != now and not (then != then and now != now):
            yield path, then, now
    elif issubclass(kind, (list, tuple)) and len(then) == len(now):
        for number, (a, b) in enumerate(zip(then, now, strict=True)):
            yield from _moved(a, b, f"{path}[{number}]", deep - 1)
    elif kind is dict and then.keys() == now.keys():
        for key in then:
            yield from _moved(then[key], now[key], f"{path}[{key!r}]", deep - 1)


def _returned_at(function: Any) -> Any:
    """The line that returns, or the last of several."""
    inner = getattr(function, "__func__", function)
    if not isinstance(inner, FunctionType):
        kind = type(inner)
        inner = getattr(kind, "forward", None) or vars(kind).get("__call__")
    if not isinstance(inner, FunctionType) or is_library(inner.__code__.co_filename):
        return None
    code = inner.__code__
    own = [n for n in nodes_of(code) if isinstance(n, FUNCTIONS[:2]) and n.name == code.co_name][:1]
    returns = [n for each in own for s in each.body for n in here(s) if isinstance(n, ast.Return)]
    return frame_at(code, returns[-1].lineno) if returns else None
