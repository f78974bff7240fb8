"""Where functions of libraries are found by the code that ran: in modules that it names, and in the classes it is of.

Whoever replaces one, as ``torch.Tensor.relu`` or ``torch.nn.functional.softmax``, writes there.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.backend.code_names import all_names
from paramgraph_kit.driver.torch_names import torch_name

ABSENT = object()
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_DEEP = 4  # "torch.nn.functional.linear"
_IMPORTS = ("importlib", "_frozen_importlib")
# What a trace of ours, on another thread perhaps, puts others for while it lasts (``flat.py``).
_OF_TRACES = frozenset(
    (
        *("has_torch_function", "__builtins__"),
        *(torch_name(name).__name__ for name in ("_is_make_fx_tracing", "_nested_tensor_from_mask_left_aligned")),
    )
)


@dataclass(slots=True)
class Row:
    """A dictionary of a module or a class, and the functions that were found in it; ABSENT where one may hide C's."""

    name: str
    holder: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Torchs:
    """Code of torch's that traces of one function ran, and what each place held when it was first found.

    A later trace may run more of torch, and keys of earlier ones stay as they are: they tell what is replaced only.
    """

    ran: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)
    _first: dict[int, Row] = field(default_factory=dict)  # by the id of the dictionary, which a row holds

    def replaced(self, row: Row) -> tuple[tuple[str, str, Any], ...]:
        """The functions of a row that are not what was there at first."""
        first = self._first.setdefault(id(row.holder), Row(row.name, row.holder)).found
        found = [
            (row.name, key, value) for key, value in row.found.items() if first.setdefault(key, value) is not value
        ]
        return tuple(sorted(found, key=lambda each: each[1]))


class Rows:
    """Of the code that ``ran``, with its global names; ``known`` are names that all code which ran has.

    >>> import torch.nn.functional as F
    >>> rows = Rows([(F.softmax.__code__, vars(F))], {"softmax"})
    >>> sorted(row.name for row in rows if "softmax" in row.found)
    ['Parameter', 'Tensor', 'torch.nn.functional']
    """

    def __init__(self, ran: Collection[tuple[types.CodeType, dict[str, Any]]], known: Set[str]) -> None:
        self._rows: dict[int, Row] = {}
        self._known = known
        for code, space in ran:
            self._named(space, all_names(code) - _OF_TRACES, _DEEP)
            self._own(space, code.co_qualname.split("."))
        for kind in _TENSORS if ran else ():
            self._class(kind)

    def __iter__(self) -> Any:
        return iter(self._rows.values())

    def _row(self, holder: dict[str, Any], name: str) -> dict[str, Any]:
        return self._rows.setdefault(id(holder), Row(name, holder)).found

    def _named(self, space: dict[str, Any], names: Set[str], depth: int) -> None:
        """What code names in a module, and of modules that it names there."""
        found = {key: space[key] for key in names & space.keys()}
        functions = {key: value for key, value in found.items() if isinstance(value, _FUNCTIONS)}
        if functions:
            self._row(space, str(space.get("__name__", ""))).update(functions)
        for value in found.values():
            if isinstance(value, types.ModuleType) and depth and not value.__name__.startswith(_IMPORTS):
                self._named(vars(value), names, depth - 1)

    def _own(self, space: dict[str, Any], path: list[str]) -> None:
        """Where code that ran was found itself: in its module, or in a class of that."""
        kind: Any = space.get(path[0])
        if len(path) == 1 and isinstance(kind, _FUNCTIONS) and path[0] not in _OF_TRACES:
            self._row(space, str(space.get("__name__", "")))[path[0]] = kind
        for name in path[1:-1]:
            kind = vars(kind).get(name) if isinstance(kind, type) else None
        if len(path) > 1 and isinstance(kind, type):
            self._class(kind)

    def _class(self, kind: type) -> None:
        own, known = gc.get_referents(vars(kind))[0], self._known  # what the proxy is for, which has a version
        if type(own) is not dict or id(own) in self._rows:
            return
        row = self._row(own, kind.__name__)
        row.update({k: v for k, v in own.items() if (k in known or k.startswith("__")) and hasattr(type(v), "__get__")})
        if kind in _TENSORS:  # methods of C's, which a class of Python's may hide
            methods = {key for key in dir(torch.Tensor) if key in known or key.startswith("__")}
            row.update(dict.fromkeys(methods - own.keys(), ABSENT))
