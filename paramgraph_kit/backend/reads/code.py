"""Where code is found in a walk: functions, classes, modules of layers and of Python, and the names that they read."""

from __future__ import annotations

import abc
import builtins
import functools
import os
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from paramgraph_kit.backend.asked import is_setting
from paramgraph_kit.backend.code_names import (
    DYNAMIC,
    ENVIRONMENT,
    asks_for_types,
    called_by,
    inherits,
    inner_code,
    is_foreign,
    is_foreign_module,
    matches_classes,
    names_of,
    run_by,
)
from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.backend.raw import KINDS
from paramgraph_kit.backend.reads.notes import Attribute, Notes
from paramgraph_kit.backend.watched import ClassEntries, Watched
from paramgraph_kit.driver.files import is_library_code

_STRUCTURE = frozenset(vars(nn.Module())) - {"training"}  # of every module, looked at by itself
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a function
_PLUMBING = ("__class__", "__init__", "__new__", "__repr__", "__str__", "__reduce__", "__reduce_ex__")
_WRAPPERS = ("functools.py", "contextlib.py")  # whose functions keep the user's in closures


class OfCode(Notes):
    """A walk's visits to what runs, and to what it is looked up in."""

    def _function(self, function: types.FunctionType, path: str) -> None:
        code = function.__code__
        wrapped = function.__dict__.get("__wrapped__")
        if is_foreign(code.co_filename):
            if wrapped is None and not code.co_filename.endswith(_WRAPPERS):
                return
        elif self._ran is not None and code not in self._ran:
            return
        else:
            self._code(code, function.__globals__)
            if asks_for_types(code):  # and may look into its defaults, which go by its own name
                self.asking.add((path or function.__name__).rpartition(".")[2])
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.watch(Watched(name, "cell", cell))
        self.watch(Watched(path or function.__name__, "attributes", function, _PARTS))
        self.watch(Watched(path or function.__name__, "names", function.__dict__, versioned=True))
        if function.__dict__:
            chosen = [key for key in function.__dict__ if self.every or key in self.names or key == "__wrapped__"]
            self._entries(function.__dict__, chosen, path or function.__name__)

    def _code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        self.codes.update(inner_code(code))
        names = names_of(code)
        self.names |= names.attributes
        if not is_library_code(code, space):
            self.looks_at_all |= not {"vars", "__dict__"}.isdisjoint(names.attributes | names.globals)
            if asks_for_types(code):
                cells = {name for each in inner_code(code) for name in each.co_freevars}
                self.asking |= names.globals | names.attributes | cells
        self.every = self.every or bool((names.attributes | names.globals) & DYNAMIC) or matches_classes(code)
        known = names.globals & space.keys()
        own = vars(builtins)
        hidden = (names.globals & own.keys()) - known  # a global of the name may come
        added = {name for name in hidden if type(own[name]) not in (types.BuiltinFunctionType, type)}
        if names.globals & {"globals", "eval", "exec"}:
            known |= {key for key, value in space.items() if isinstance(value, (*PLAIN, *KINDS))}
        absent = names.globals - own.keys()  # deleted, or not there yet: it may come
        self._entries(space, (known | hidden | absent) - {"__builtins__"}, "")
        if added:
            self._entries(own, added, "")
        self._decimals |= not {"decimal", "Decimal", "getcontext"}.isdisjoint(names.globals)
        if (names.attributes | names.globals) & ENVIRONMENT:
            self.key.append(self.look(os.environ, "os.environ"))
        if found := sorted(names.modules & sys.modules.keys()):
            self.watch(Watched("sys.modules", "entries", sys.modules, tuple(found)), found)

    def _module(self, module: nn.Module, path: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return
        self.modules.append((path, module))
        own, foreign = vars(module), inherits(type(module))
        chosen = {"forward"}
        for key, value in own.items():
            read = key in self.names  # of torch's modules, too: others hang their own there, as accelerate its hooks
            counts = read or (not key.startswith("_") if foreign else self.every)
            if key not in _STRUCTURE and (isinstance(value, PLAIN) or counts):
                chosen.add(key)
        self._entries(own, chosen, path or type(module).__name__, versioned=True)
        self.watch(Watched(path, "names", own, versioned=True))  # one may come that was looked for in vain
        for kind in _HOOKS:
            self.key.append(self.look(own[kind], f"{path}.{kind}"))
        for name, child in module._modules.items():  # before the dictionary that holds them: so they get their names
            self.key.append(self.look(child, f"{path}.{name}" if path else name))
        self.key.append(self.look(module._modules, path))
        self.watch(Watched(type(module).__name__, "class", module))  # assigning it writes no dictionary

    def _class(self, kind: type) -> None:
        if is_foreign_module(kind.__module__):
            if issubclass(kind, nn.Module):
                self._layer(kind)
            return
        chosen = {key for each in kind.__mro__ for key in vars(each) if key in self.names}
        # Methods that operators and torch call, by names that are not in the user's code.
        called = {key for each in kind.__mro__[1:] if is_foreign_module(each.__module__) for key in vars(each)}
        chosen |= {
            key
            for key, value in vars(kind).items()
            if callable(value) and ((key.startswith("__") and key not in _PLUMBING) or key in called)
        }
        if self.every:
            chosen |= {key for key in vars(kind) if not key.startswith("__")}
        self._entries(ClassEntries(kind), chosen, kind.__name__)
        self.watch(Watched(kind.__name__, "computed", functools.partial(len, vars(kind))))
        self.watch(Watched(kind.__name__, "attributes", kind, ("__bases__",)))
        for base in kind.__mro__[1:]:
            self.key.append(self.look(base, base.__name__))
        self.key.append(self.look(type(kind), f"type({kind.__name__})"))
        self._abstract |= isinstance(kind, abc.ABCMeta)

    def _layer(self, kind: type) -> None:
        """A class of layers of torch's: its ``forward`` may be replaced, or a function that this calls."""
        for each in kind.__mro__[: kind.__mro__.index(nn.Module)]:
            self._entries(ClassEntries(each), ("forward",), each.__name__)
            if (forward := run_by(each)) is not None and (names := called_by(forward.__code__)):
                self._entries(vars(F), names, "F")

    def _python_module(self, module: types.ModuleType, path: str) -> None:
        found = {key for key in self.names if key in vars(module)}
        if is_foreign_module(module.__name__):
            found = {k for k in found if is_setting(vars(module)[k]) and not k.startswith("_")}
        elif self.every:
            found |= {k for k, v in vars(module).items() if isinstance(v, PLAIN) and not k.startswith("__")}
        # torch's own are seldom written.
        self._entries(vars(module), found, path, versioned=module.__name__.partition(".")[0] == "torch")
        if (kind := type(module)) is not types.ModuleType:
            self.key.append(self.look(kind, f"type({path})"))
            computed = {key for each in kind.__mro__ for key in vars(each)} - set(dir(types.ModuleType))
            for key in sorted(self.names & computed):
                self.watch(Watched(f"{path}.{key}", "computed", Attribute(module, key)))
        if isinstance(found_by := vars(module).get("__getattr__"), types.FunctionType):
            self.key.append(self.look(found_by, f"{path}.__getattr__"))


@dataclass(frozen=True, slots=True)
class Ran:
    """Code that ran, where no function that has it can be found."""

    code: types.CodeType
    globals: dict[str, Any]
