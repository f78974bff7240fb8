"""Objects that functions in a capture were given: numbers of theirs decide what is captured, as ``max(cache.lens)``."""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Names, Use, parts
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.names_read import body_of, stored_in
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.short_names import first_of
from paramgraph_kit.driver.files import is_library

_MOST = 16  # calls of one function


class _Kept(dict[str, Any]):
    """What names mean, as long as somebody else keeps it."""

    def get(self, name: str, default: Any = None) -> Any:
        value = super().get(name, NOTHING)
        held = value() if isinstance(value, weakref.ref) else value
        return default if held is None or held is NOTHING else held


@dataclass(slots=True)
class GivenObjects:
    """Those of one capture."""

    calls: dict[CodeType, dict[int, Names]] = field(default_factory=dict)  # by the frame of a call

    def look(self, around: Collection[CodeType], at: Place) -> None:
        """Something runs in the capture: what its functions were given is noted once."""
        if all(len(self.calls.get(code, ())) >= _MOST for code, _ in at.stack if code not in around):
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (code := frame.f_code) not in around:
            known = self.calls.setdefault(code, {})
            if not is_library(code.co_filename) and id(frame) not in known and len(known) < _MOST:
                known[id(frame)] = _given(frame)
            frame = frame.f_back

    def uses(self) -> list[Use]:
        """The numbers of such objects that the functions read."""
        found: list[Use] = []
        for code, calls in self.calls.items():
            nodes, stored = body_of(code), stored_in(nodes_of(code))
            for names in calls.values():
                for node, decides in nodes:
                    use = Use(code, node, decides, names)
                    is_read = first_of(node) in names.known and first_of(node) not in stored
                    if is_read and not isinstance(node, ast.Name) and _is_of_numbers(use.value()):
                        found.append(use)
        return found


def _given(frame: FrameType) -> Names:
    """The objects and plain lists among the arguments of a call; tensors are none of it, and nothing is kept alive."""
    code, known = frame.f_code, _Kept()
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if is_a(value, torch.Tensor) or value is None:
            continue
        try:
            known[name] = weakref.ref(value)
        except TypeError:  # of a plain value
            if type(value) in (list, dict) and all(type(each) in NUMBERS for each in _entries(value)):
                known[name] = value
    return Names(frame.f_globals, own=frozenset(code.co_varnames), known=known)


def _entries(value: Any) -> Collection[Any]:
    return value.values() if type(value) is dict else value


def _is_of_numbers(value: Any) -> bool:
    return bool(found := parts(value)) and all(kind in ("number", "itself") for kind, _ in found.values())
