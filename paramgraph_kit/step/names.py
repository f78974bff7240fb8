"""What the code that a step has run names, and which objects it can have read it of."""

from __future__ import annotations

import types
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.backend.code_names import all_names, line_naming, matches_classes, names_of, reads_of, spelled_in
from paramgraph_kit.driver.files import is_generated, is_library, is_library_code
from paramgraph_kit.driver.lines import frame_of_line
from paramgraph_kit.step.holders import Holder
from paramgraph_kit.trace.model import Frame

_DEVICE = "paramgraph_kit.driver.sim"  # where it is Python's: what it names says as little as what a GPU's driver names
_OF_MODULES = torch.nn.Module.__getattr__  # looks in the module alone, at what is no plain value
_PLAIN = (int, float, bool, complex, str, type(None))  # nobody can call them
_DYNAMIC = {
    "getattr",
    "setattr",
    "vars",
    "__dict__",
    "eval",
    "exec",
    "globals",
    "locals",
    "asdict",
    "astuple",
    "fields",
}


def globals_named(code: types.CodeType) -> Set[str]:
    """An attribute may be called like a global variable, a loop's for instance, that changes at each call."""
    names = all_names(code)
    return names if names & _DYNAMIC else names_of(code).globals


def _is_dynamo_s(code: types.CodeType) -> bool:
    """Whether code runs what Dynamo has compiled: one of its contexts does, but not that of what is disabled for it,

    which each step of an optimizer is.
    """
    name = code.co_qualname
    return code.co_filename.endswith("_dynamo/eval_frame.py") and "." in name and not name.startswith("DisableContext.")


@dataclass(slots=True)
class Names:
    """What code that has run names: where the rest of an object may change without a captured step noticing."""

    known: set[str] = field(default_factory=set)
    spaces: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)  # of the user's globals
    modules: set[str] = field(default_factory=set)  # that the user's code imports as it runs
    dynamic: bool = False  # the user's code looks names up that are not in it
    own: set[str] = field(default_factory=set)  # what the user's own code names
    compiled: bool = False  # code ran that Dynamo has compiled: it has read modules out of sight
    constants: dict[int, torch.Tensor] = field(default_factory=dict)  # of such code, which never changes
    ran: list[tuple[types.CodeType, dict[str, Any]]] = field(default_factory=list)  # libraries', with global names
    _naming: dict[str, list[types.CodeType]] = field(default_factory=dict)  # the code behind ``known``
    _spelled: set[str] = field(default_factory=set)  # known from texts that no code holds
    _firsts: dict[types.CodeType, set[type]] = field(default_factory=dict)  # what code ran on: the classes of its self
    _readers: dict[str, set[type] | None] = field(default_factory=dict)  # None: anything may be read so
    # By id: code of another file may be equal, and has global names of its own.
    _seen: dict[int, types.CodeType] = field(default_factory=dict)
    _modules: dict[int, types.CodeType] = field(default_factory=dict)

    def add(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Code that runs, with its global names."""
        if id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if str(space.get("__name__", "")).startswith(_DEVICE):
            return
        library = is_library_code(code, space)
        names = all_names(code)
        self.known |= names
        self._readers.clear()
        for name in names:
            self._naming.setdefault(name, []).append(code)
        if is_generated(code.co_filename):
            found = [x for x in map(space.get, code.co_names) if isinstance(x, torch.Tensor)]
            self.constants |= {id(x): x for x in found}
        if library:
            self.ran.append((code, space))
            self.spell(spelled_in(code))
            self.compiled = self.compiled or _is_dynamo_s(code)
        else:
            self.dynamic = self.dynamic or bool(names & _DYNAMIC) or matches_classes(code)
            self.own |= names
            self.modules |= names_of(code).modules
            self.spaces.setdefault(id(space), (space, set()))[1].update(globals_named(code))

    def met(self, code: types.CodeType, local: Mapping[str, Any]) -> None:
        """Code that runs, with its variables: whose attributes are those of its first argument."""
        if code.co_argcount and (name := code.co_varnames[0]) in local:
            kind = type(local[name])
            if kind not in (known := self._firsts.setdefault(code, set())):
                known.add(kind)
                self._readers.clear()

    def spell(self, names: Set[str]) -> None:
        """Names of attributes that an object holds, such as a getter's."""
        self.known |= names
        self._spelled |= names

    def line_of(self, name: str) -> Frame | None:
        """The line of the user's where code that ran names an attribute or a variable."""
        codes = [code for code in self._naming.get(name, ()) if not is_library(code.co_filename)]
        lines = ((code, line_naming(code, name)) for code in codes)
        return next((frame_of_line(code.co_filename, line) for code, line in lines if line), None)

    def add_module(self, code: types.CodeType, module: Any) -> None:
        """A module of operations that runs, whose code torch has made: its attributes are constants."""
        if id(code) not in self._modules:
            self._modules[id(code)] = code
            held = [*vars(module).values(), *module._buffers.values()]
            self.constants |= {id(x): x for x in held if isinstance(x, torch.Tensor)}

    def copy(self) -> Names:
        """What it knows by now."""
        return replace(
            self,
            known=set(self.known),
            spaces={key: (space, set(names)) for key, (space, names) in self.spaces.items()},
            modules=set(self.modules),
            own=set(self.own),
            constants=self.constants.copy(),
            ran=self.ran.copy(),
            _naming={name: list(codes) for name, codes in self._naming.items()},
            _spelled=set(self._spelled),
            _firsts={code: set(kinds) for code, kinds in self._firsts.items()},
            _readers={},
            _seen={},
            _modules={},
        )

    def counts(self, holder: Holder, key: Any) -> bool:
        """Whether the step may have read a place."""
        if holder.whole or holder.kind not in ("attributes", "slots", "class") or self.dynamic:
            return True
        if holder.kind == "class" and key.startswith("__"):  # operators and torch call it
            return True
        if self.compiled and isinstance(holder.target, dict) and "_modules" in holder.target:
            return True
        return key in self.known and self._may_read(holder, key)

    def _may_read(self, holder: Holder, key: str) -> bool:
        """Whether code that names an attribute can have read it of an object, where it is a plain value.

        Many count between steps, under a name that some code of torch's has for something of its own.
        """
        if holder.owner is None or holder.kind != "attributes" or key in self._spelled:
            return True
        if type(dict.get(holder.target, key, self)) not in _PLAIN or key not in self._naming:
            return True
        if self.compiled:  # from then on nobody notes on what code runs
            return True
        if key not in self._readers:
            self._readers[key] = self._readers_of(key)
        kinds = self._readers[key]
        return kinds is None or holder.owner in kinds

    def _readers_of(self, name: str) -> set[type] | None:
        kinds = set[type]()
        for code in self._naming[name]:
            read = reads_of(code, name)
            if read == "any" or (read == "first" and code not in self._firsts):
                return None
            if read == "first":
                kinds |= self._firsts[code]
        return None if any(_passes_on(kind, name) for kind in kinds) else kinds


def _passes_on(kind: type, name: str) -> bool:
    """Whether a class may look an attribute of its objects up in other ones, as proxies do."""
    spaces = [vars(each) for each in kind.__mro__]
    getter = next((each["__getattr__"] for each in spaces if "__getattr__" in each), _OF_MODULES)
    if getter is not _OF_MODULES or any(type(each.get("__getattribute__")) is types.FunctionType for each in spaces):
        return True
    return any(hasattr(type(each.get(name)), "__get__") for each in spaces)
