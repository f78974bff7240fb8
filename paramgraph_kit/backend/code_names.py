"""What code names: the globals, attributes and modules that a function may read when it runs, from its code alone."""

from __future__ import annotations

import dis
import inspect
import os
import sys
import sysconfig
import types
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from paramgraph_kit.driver.files import package_of

# Code that names one of these may look up names that are not in it.
DYNAMIC = frozenset(
    (
        *("getattr", "vars", "__dict__", "__getattribute__", "eval", "exec", "globals", "locals", "dir", "attrgetter"),
        *("asdict", "astuple", "fields", "replace", "copy", "deepcopy"),
    )
)
_NEAR = 12  # instructions that one comparison may have
ENVIRONMENT = frozenset(("environ", "getenv", "environb", "expandvars"))
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
# What torch calls while it traces, and what runs notebooks and tests.
_OF_TORCH = frozenset(
    (
        *("torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec"),
        *("filelock", "triton", "typing_extensions.py", "six.py", "setuptools", "_distutils_hack", "cuda", "nvidia"),
        *("pytest", "_pytest", "pluggy", "IPython", "ipykernel", "traitlets", "coverage"),
    )
)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_READS_NOTHING = ("builtins", "abc", "typing", "torch.nn.modules.module")


@dataclass(frozen=True, slots=True)
class Names:
    """What one piece of code names, with all that is defined in it."""

    globals: frozenset[str]
    attributes: frozenset[str]  # short texts too, which ``getattr`` may be given
    modules: frozenset[str]  # that it imports when it runs


@lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    """Read from the instructions of the code, nested functions included."""
    kinds: dict[str, set[str]] = {"GLOBAL": set(), "NAME": set(), "OTHER": set()}
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            kinds["NAME"].add(instruction.argval)
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            kinds["GLOBAL"].add(instruction.argval)
    kinds["OTHER"] |= {name for name in code.co_names if name not in kinds["GLOBAL"]} | _repeated(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_of(constant)
            kinds["GLOBAL"] |= inner.globals
            kinds["OTHER"] |= inner.attributes
            kinds["NAME"] |= inner.modules
        elif isinstance(constant, str) and constant.isidentifier():
            kinds["OTHER"].add(constant)
    return Names(frozenset(kinds["GLOBAL"]), frozenset(kinds["OTHER"]), frozenset(kinds["NAME"]))


_COMPARES = ("IS_OP", "COMPARE_OP", "CONTAINS_OP", "BINARY_SUBSCR")
_ANCESTORS = ("__mro__", "mro", "__bases__", "__base__")
_LOOKS_UP = ("get", "setdefault", "index", "count")  # in a table by types


@lru_cache(maxsize=4096)
def compares_types(code: types.CodeType) -> int | None:
    """The line where code compares a ``type(...)`` or a ``__class__`` with a kind of tensors, or asks for its bases.

    >>> compares_types((lambda x: type(x) is torch.Tensor).__code__) is None
    False
    >>> compares_types((lambda x: isinstance(x, torch.Tensor)).__code__) is None
    True
    """
    steps = list(dis.get_instructions(code))
    asked = [n for n, step in enumerate(steps) if step.argval in ("type", "__class__") and "LOAD" in step.opname]
    for n in asked:
        if steps[n].argval == "type" and steps[n].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            continue  # x.type(), which is another thing
        if any(step.argval in _ANCESTORS for step in steps[n + 1 : n + _NEAR]):
            return _line_of(steps[n], code)
        near = steps[max(n - _NEAR // 2, 0) : n + _NEAR]
        if any(step.opname in _COMPARES or step.argval in _LOOKS_UP for step in near) and any(
            step.argval in ("Tensor", "Parameter", "Buffer", "FloatTensor") and "LOAD" in step.opname for step in near
        ):
            return _line_of(steps[n], code)
    return None


def _line_of(step: dis.Instruction, code: types.CodeType) -> int | None:
    return step.positions.lineno if step.positions is not None else code.co_firstlineno


def asks_for_types(code: types.CodeType) -> bool:
    """Whether code asks what type something is of, by ``type`` or ``__class__``.

    >>> asks_for_types((lambda x: type(x)).__code__)
    True
    """
    names = names_of(code)
    return "type" in names.globals or "__class__" in names.attributes


def matches_classes(code: types.CodeType) -> bool:
    """Whether code has a ``case`` with a class: it reads attributes that it does not name as such.

    >>> scope = {}
    >>> exec("def f(x):\\n match x:\\n  case int(real=y): return y", scope)
    >>> matches_classes(scope["f"].__code__)
    True
    """
    return any(dis.opmap["MATCH_CLASS"] in each.co_code[::2] for each in inner_code(code))


def all_names(code: types.CodeType) -> set[str]:
    """Names of every kind in code, and short texts: found a hundred times faster than ``names_of`` tells them apart."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= all_names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return found


@lru_cache(maxsize=4096)
def spelled_in(code: types.CodeType) -> frozenset[str]:
    """Names in tuples by which code may read attributes: with ``getattr`` in a loop, by a ``case`` with a class.

    >>> sorted(spelled_in((lambda x: [getattr(x, name) for name in ("width", "height")]).__code__))
    ['height', 'width']
    """
    every = list(inner_code(code))
    if not matches_classes(code) and all(DYNAMIC.isdisjoint(each.co_names) for each in every):
        return frozenset()
    left, found = [constant for each in every for constant in each.co_consts], set[str]()
    while left:
        if isinstance(constant := left.pop(), (tuple, frozenset)):
            left += constant
            found |= {text for text in constant if isinstance(text, str) and text.isidentifier()}
    return frozenset(found)


@lru_cache(maxsize=4096)
def reads_of(code: types.CodeType, name: str) -> str:
    """Of which objects code may read an attribute that cannot be called: of "none", of its "first" argument, of "any".

    >>> reads_of((lambda self: self.count + 1).__code__, "count"), reads_of((lambda x: x.count()).__code__, "count")
    ('first', 'none')
    >>> reads_of((lambda self: self.inner.count + 1).__code__, "count")
    'any'
    >>> reads_of((lambda self, other: (other or self).count + 1).__code__, "count")
    'any'
    """
    steps = list(dis.get_instructions(code))
    first = code.co_varnames[0] if code.co_argcount else ""
    if any(step.opname.startswith(("STORE_FAST", "DELETE_FAST")) and first in _texts(step.argval) for step in steps):
        first = ""
    found = "any" if name in code.co_consts and not DYNAMIC.isdisjoint(code.co_names) else "none"
    for n, step in enumerate(steps):
        if step.opname == "LOAD_CONST" and step.argval == name:  # getattr's, or a key of a dict
            found = found if steps[min(n + 1, len(steps) - 1)].opname in _OF_DICTS else "any"
            continue
        if step.argval != name or step.opname == "LOAD_METHOD" or "self" in step.argrepr.replace(name, "", 1):
            continue  # or it is called
        before = steps[n - 1]
        of_first = first and n and before.opname in _OF_ONE and before.argval == first
        of_first = of_first and not step.is_jump_target  # from there it comes with another one
        if of_first and step.opname in ("LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR"):
            found = "first" if found == "none" else found
            continue
        if not step.opname.endswith(("_GLOBAL", "_NAME", "_FAST", "_DEREF", "_CLOSURE", "_FROM", "_CELL")):
            found = "any"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and reads_of(constant, name) != "none":
            found = "any"
    return found


_OF_DICTS = ("BINARY_SUBSCR", "BINARY_OP", "STORE_SUBSCR", "DELETE_SUBSCR", "CONTAINS_OP")
_OF_ONE = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")


def _texts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def line_naming(code: types.CodeType, name: str) -> int | None:
    """The first line of code that names something, or what is defined in it does."""
    for each in inner_code(code):
        for step in dis.get_instructions(each):
            place = step.positions
            if (step.argval == name or (step.opname == "LOAD_CONST" and step.argval == name)) and place is not None:
                return place.lineno
    return None


def _repeated(code: types.CodeType) -> set[str]:
    """Names of globals that are names of attributes as well."""
    return {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")}


def inner_code(code: types.CodeType) -> list[types.CodeType]:
    """Code and all code that is defined in it."""
    inner = [
        each for constant in code.co_consts if isinstance(constant, types.CodeType) for each in inner_code(constant)
    ]
    return [code, *inner]


@cache
def is_foreign(file: str) -> bool:
    """Whether a file is torch's, Python's own or ours: what it reads is known, and no state of the user's.

    Other installed packages are the user's in this: a model of a library reads its configuration like one of theirs.
    """
    if file.startswith(("<frozen", "<eval_with_key>", _OURS, _TORCH)):
        return True
    package = package_of(file)
    return package in _OF_TORCH if package else file.startswith(_standard_library())


@cache
def _standard_library() -> tuple[str, ...]:
    paths = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
    return tuple(path.rstrip(os.sep) + os.sep for path in paths)


def is_foreign_module(name: Any) -> bool:
    """The same of a module by its name, which classes that C code makes may lack."""
    if not isinstance(name, str):
        return True
    if name == "__main__":  # a program's, whoever runs it
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is not None:
        return is_foreign(file)
    return name in sys.builtin_module_names or name.partition(".")[0] in ("torch", "numpy")


def inherits(kind: type) -> bool:
    """Whether code of torch's or Python's own may read what an object of a class holds: its class is theirs, or a base.

    >>> from collections import UserDict
    >>> users = {"__module__": "users"}
    >>> inherits(type("Settings", (UserDict,), users)), inherits(type("Settings", (), users))
    (True, False)
    """
    return any(each.__module__ not in _READS_NOTHING and is_foreign_module(each.__module__) for each in kind.__mro__)


def run_by(kind: type) -> types.FunctionType | None:
    """What a class of layers or optimizers runs, where it says so itself.

    >>> run_by(torch.nn.Linear).__name__, run_by(torch.optim.SGD).__name__
    ('forward', 'step')
    """
    run = vars(kind).get("forward" if issubclass(kind, torch.nn.Module) else "step")
    return run if isinstance(run, types.FunctionType) else None


@lru_cache(maxsize=1024)
def called_by(code: types.CodeType) -> tuple[str, ...]:
    """The functions of ``torch.nn.functional`` that a layer of torch's calls, and those that these call.

    >>> called_by(torch.nn.Linear.forward.__code__)
    ('linear',)
    """
    return called_of(code, vars(F))


def functions_of(kind: type, run: types.FunctionType) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The namespace of the functions that what a class of layers or optimizers runs goes through, and their names.

    >>> "sgd" in functions_of(torch.optim.SGD, torch.optim.SGD.step)[1]
    True
    """
    inner = inspect.unwrap(run)  # optimizers' steps are decorated
    space = vars(F) if issubclass(kind, torch.nn.Module) else inner.__globals__
    return space, called_of(inner.__code__, space)


def called_of(code: types.CodeType, space: dict[str, Any]) -> tuple[str, ...]:
    """The functions of a namespace that code calls, and those that these call."""
    found, left = set[str](), [code]
    while left:
        for name in all_names(left.pop()) & space.keys() - found:
            part = space[name]
            if isinstance(part, (types.FunctionType, types.BuiltinFunctionType)):
                found.add(name)
                left += [part.__code__] if isinstance(part, types.FunctionType) else []
    return tuple(sorted(found))
