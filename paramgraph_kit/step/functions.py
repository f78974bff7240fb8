"""Functions of libraries that a step ran, torch's above all: whoever replaces one has another step from then on.

``torch.Tensor.backward``, ``torch.autograd.backward`` that it calls, what an optimizer calls of its own module: looked
for in the modules and classes where the code that ran found them, and asked by the versions of these dictionaries.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Set
from typing import Any

import torch

from paramgraph_kit.backend.code_names import all_names
from paramgraph_kit.driver.dict_versions import TOLD, Versions
from paramgraph_kit.driver.files import is_generated
from paramgraph_kit.driver.native.places import ABSENT, Place, Places
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.step.names import Names

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_DEEP = 4  # "torch.nn.functional.linear"
_IMPORTS = ("importlib", "_frozen_importlib")


class Functions:
    """Those, as they were when this was made; it holds them.

    >>> import torch.nn.functional as F
    >>> names = Names()
    >>> names.add(F.softmax.__code__, vars(F))
    >>> functions, plain = Functions(names), torch.Tensor.softmax
    >>> functions.same()
    True
    >>> torch.Tensor.softmax = lambda x, dim: x
    >>> functions.same(), functions.difference()
    (False, 'Tensor.softmax')
    >>> del torch.Tensor.softmax
    >>> functions.same()
    True
    """

    def __init__(self, names: Names) -> None:
        self._names: dict[int, str] = {}
        self._rows: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        known: Set[str] = names.known
        for code, space in names.ran.items():
            if is_generated(code.co_filename):
                continue
            self._named(space, all_names(code) - {"__builtins__"}, known, _DEEP)
            self._own(space, code.co_qualname.split("."), known)
        for kind in _TENSORS if self._rows else ():
            self._class(kind, known)
        # Where versions of dictionaries are not told, each place is asked.
        self._asked: set[int] = set() if TOLD else set(self._rows)
        self._all = Places([place for key in self._rows for place in self._places(key)])
        self._arrange()

    def same(self) -> bool:
        """Whether nobody has replaced any."""
        if self._versions() and self._often.same():
            return True
        if not self._all.same():
            return False
        # Written, and not where it matters: who does so may do it at each call.
        self._asked |= {key for key, number in self._numbers.items() if self._number(key) != number}
        self._arrange()
        return True

    @property
    def checks(self) -> tuple[Any, Any]:
        """For ``unchanged`` of the module in C++: each None until that is built."""
        return self._versions.check, self._often.check

    def difference(self) -> str | None:
        """The first that is another one by now."""
        for key, (holder, expected) in self._rows.items():
            for name, value in expected.items():
                if holder.get(name, ABSENT) is not value:
                    return f"{self._names[key]}.{name}"
        return None

    def _arrange(self) -> None:
        versioned = {key: holder for key, (holder, _) in self._rows.items() if key not in self._asked}
        self._often = Places([place for key in self._asked for place in self._places(key)])
        self._numbers = {key: self._number(key) for key in versioned} if TOLD else {}
        self._versions = Versions(list(versioned.values()))

    def _number(self, key: int) -> int:
        number: int = torch_name("dict_version")(self._rows[key][0])
        return number

    def _places(self, key: int) -> list[Place]:
        holder, expected = self._rows[key]
        return [Place("global", holder, (value,), name) for name, value in expected.items()]

    def _row(self, holder: dict[str, Any], name: str) -> dict[str, Any]:
        self._names.setdefault(id(holder), name)
        return self._rows.setdefault(id(holder), (holder, {}))[1]

    def _named(self, space: dict[str, Any], names: Set[str], known: Set[str], depth: int) -> None:
        """What code names in a module, and of modules that it names there."""
        found = {key: space[key] for key in names & space.keys()}
        functions = {key: value for key, value in found.items() if isinstance(value, _FUNCTIONS)}
        if functions:
            self._row(space, str(space.get("__name__", ""))).update(functions)
        for value in found.values():
            if isinstance(value, types.ModuleType) and depth and not value.__name__.startswith(_IMPORTS):
                self._named(vars(value), names, known, depth - 1)

    def _own(self, space: dict[str, Any], path: list[str], known: Set[str]) -> None:
        """Where code that ran was found itself: in its module, or in a class of that."""
        kind: Any = space.get(path[0])
        if len(path) == 1 and isinstance(kind, _FUNCTIONS):
            self._row(space, str(space.get("__name__", "")))[path[0]] = kind
        for name in path[1:-1]:
            kind = vars(kind).get(name) if isinstance(kind, type) else None
        if len(path) > 1 and isinstance(kind, type):
            self._class(kind, known)

    def _class(self, kind: type, known: Set[str]) -> None:
        own = gc.get_referents(vars(kind))[0]  # what the proxy is for, which has a version
        if type(own) is not dict or id(own) in self._rows:
            return
        row = self._row(own, kind.__name__)
        row.update({k: v for k, v in own.items() if (k in known or k.startswith("__")) and hasattr(type(v), "__get__")})
        if kind in _TENSORS:  # methods of C's, which a class of Python's may hide
            methods = {key for key in dir(torch.Tensor) if key in known or key.startswith("__")}
            row.update(dict.fromkeys(methods - own.keys(), ABSENT))
