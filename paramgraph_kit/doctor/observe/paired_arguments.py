"""Arguments that a call pairs with those of the capture: ``zip(self.static, args)``, of which tensors are copied."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.captured_values import path_value

_NUMBERS = (int, float)


def paired_with(entry: int, then: Any, frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a call is given for an entry of what its object keeps, whose numbers nothing copies.

    Args:
        entry: which of the arguments of the capture.
        then: what that was.
        frame: a function that runs at a replay, and takes ``*args``.
    """
    many = inspect.getargs(frame.f_code).varargs
    given = frame.f_locals.get(many) if many is not None else None
    if type(given) is not tuple or not entry < len(given) or type(given[entry]) not in _NUMBERS:
        return
    for call in nodes_of(frame.f_code):
        if not isinstance(call, ast.Call) or last_name(call.func) != "zip" or len(call.args) != 2:
            continue
        for held, new in (call.args, call.args[::-1]):
            if isinstance(new, ast.Name) and new.id == many and isinstance(held, (ast.Attribute, ast.Name)):
                kept = path_value(held, dict(frame.f_locals), frame.f_globals)
                same = type(kept) in (list, tuple) and len(kept) == len(given) and type(kept[entry]) is type(then)
                if same and kept[entry] == then and given[entry] != then:
                    yield f"{many}[{entry}]", given[entry]
