"""What names mean in lines around a step, as far as dictionaries tell: nothing of the user's runs."""

from __future__ import annotations

import ast
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from inspect import unwrap
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import innermost, last_name, tree_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_entries import is_dict
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.held import is_a

_MOST = 4096  # objects of one walk over modules or parameters
_AS_THEY_ARE = ("list", "tuple", "iter", "reversed", "sorted", "set", "tqdm", "cast")
_PARTS = ("parameters", "modules", "children", "buffers")
ITSELF = ("eval", "train", "requires_grad_", "to", "cuda", "type", "to_empty")  # calls of modules that give them
DTYPES = {"half": torch.float16, "float": torch.float32, "double": torch.float64, "bfloat16": torch.bfloat16}
PLAIN = (*NUMBERS, str, bytes, type(None))
_REMAKES = re.compile(
    r"torch\.nn\.utils\.(parametriz|prune|weight_norm|spectral_norm)"
)  # whose functions change modules


@dataclass(frozen=True, slots=True, eq=False)
class Some:
    """Each of these in turn, as a loop over them gives."""

    each: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A scheduler of torch's that a line makes for an optimizer."""

    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """What ``enumerate`` or ``named_parameters`` gives: the last of each pair, or one of each of these."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The attributes of an object, as ``vars(it)`` has them."""

    of: Any


@dataclass(slots=True, eq=False)
class Thing:
    """An object of a class that is not there yet: what its methods have given it, and what it is called."""

    kind: ast.ClassDef
    file: str
    has: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Names:
    """The variables of one run of a function, and those of its file."""

    own: dict[str, Any]
    space: dict[str, Any]
    cells: dict[str, CellType] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()  # what it says is global

    def get(self, name: str) -> Any:
        """What a name means; NOTHING of a variable that nobody knows."""
        if name in self.own and name not in self.outer:
            return self.own[name]
        if name in self.cells:
            try:
                return self.cells[name].cell_contents
            except ValueError:
                return NOTHING
        return self.space.get(name, NOTHING)


def name_as_there(names: Names, made: Any, value: Any) -> None:
    """Variables that have what a line makes mean what is there: the step's own object keeps it, and what it has."""
    met, waiting = dict[int, Any](), [(made, value)]
    while waiting:
        thing, known = waiting.pop()
        kinds = [kind.__name__ for kind in type(known).__mro__]
        if isinstance(thing, Thing) and thing.kind.name in kinds and id(thing) not in met:
            met[id(thing)] = known
            waiting += [(part, attribute(known, name)) for name, part in thing.has.items()]
    names.own.update({name: met[id(held)] for name, held in names.own.items() if id(held) in met})


def elements(value: Any) -> tuple[Any, ...] | None:
    """What a loop over a value gives in turn; None where that is not known."""
    if isinstance(value, Some):
        return value.each
    if type(value) in (list, tuple, deque) and len(value) <= _MOST:
        return tuple(value)
    if is_a(value, (torch.nn.ModuleList, torch.nn.Sequential)):
        return tuple(value._modules.values())
    return None


def picked(value: Any) -> tuple[Any, ...] | None:
    """What an entry may be under a key that nobody knows."""
    return tuple(value.values()) if is_dict(value) and len(value) <= _MOST else elements(value)


def in_kinds(value: Any) -> tuple[Any, ...]:
    """Some modules in groups of one class each, parameters by whether they learn: a test of that is known then."""
    if isinstance(value, Pairs):
        ways = [in_kinds(each) for each in value.parts]
        many = [number for number, way in enumerate(ways) if len(way) > 1]
        if len(many) != 1:
            return (value,)
        at = many[0]
        return tuple(Pairs((*value.parts[:at], way, *value.parts[at + 1 :])) for way in ways[at])
    if not isinstance(value, Some) or not all(is_a(each, (torch.nn.Module, torch.Tensor)) for each in value.each):
        return (value,)
    groups: dict[Any, list[Any]] = {}
    for each in value.each:
        groups.setdefault((type(each), is_a(each, torch.Tensor) and each.requires_grad), []).append(each)
    return tuple(group[0] if len(group) == 1 else Some(tuple(group)) for group in groups.values())


def all_of(value: Any) -> tuple[Any, ...]:
    """The objects that a value may be."""
    return value.each if isinstance(value, Some) else () if value is NOTHING else (value,)


def attribute(owner: Any, name: str) -> Any:
    """What an attribute of it is, without asking anything of the user's."""
    if isinstance(owner, Some):
        found = [attribute(each, name) for each in owner.each]
        known = [each for each in found if each is not NOTHING]
        return Some(tuple(known)) if known else NOTHING
    if isinstance(owner, Thing):
        return owner.has.get(name, NOTHING)
    if owner is NOTHING or isinstance(owner, (Pairs, Held)):
        return NOTHING
    if name == "__dict__":
        return Held(owner)
    if name == "__class__":
        return type(owner)
    if is_a(owner, torch.Tensor) and name in ("data", "grad", "requires_grad"):
        return owner.requires_grad if name == "requires_grad" else NOTHING
    return path_value(ast.Attribute(ast.Name("it"), name), {"it": owner}, {})


def entry(owner: Any, key: Any) -> Any:
    """What a constant entry of a list or a dictionary is."""
    if isinstance(owner, Held):
        return attribute(owner.of, str(key))
    if is_dict(owner):
        return owner.get(key, NOTHING) if isinstance(key, PLAIN) else NOTHING
    if is_a(owner, torch.nn.ModuleDict):
        return owner._modules.get(key, NOTHING)
    held = elements(owner)
    return held[key] if held is not None and type(key) is int and -len(held) <= key < len(held) else NOTHING


def given_by(call: ast.Call, names: Names, evaluate: Any) -> Any:
    """What some calls of torch's and of Python's give, which only look."""
    name = last_name(call.func)
    kind = evaluate(call.func, names)
    if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
        given = [evaluate(each, names) for each in (*call.args, *(k.value for k in call.keywords))]
        return next((Scheduled(each) for each in given if is_a(each, torch.optim.Optimizer)), NOTHING)
    if isinstance(call.func, ast.Name):
        first = evaluate(call.args[0], names) if call.args else NOTHING
        if name == "vars":
            return Held(first) if first is not NOTHING else NOTHING
        if name == "type" and len(call.args) == 1:
            return type(first) if first is not NOTHING and not isinstance(first, (Some, Thing)) else NOTHING
        if name == "getattr" and len(call.args) > 1 and isinstance(key := evaluate(call.args[1], names), str):
            return attribute(first, key)
        if name == "enumerate":
            return Pairs((NOTHING, _each_of(first)))
        if name == "zip":
            return Pairs(tuple(_each_of(evaluate(each, names)) for each in call.args))
        if name == "super":
            return names.own.get(next(iter(names.own), ""), NOTHING)
        return first if name in _AS_THEY_ARE and elements(first) is not None else NOTHING
    if not isinstance(call.func, ast.Attribute):
        return NOTHING
    owner = evaluate(call.func.value, names)
    if is_a(owner, torch.nn.Module) and name in _PARTS and callable(getattr(type(owner), name, None)):
        return Some(_some(getattr(torch.nn.Module, name)(owner)))
    if is_a(owner, torch.nn.Module) and name.startswith("named_") and name[6:] in _PARTS:
        return Pairs((NOTHING, Some(_some(getattr(torch.nn.Module, name[6:])(owner)))))
    if name in ("values", "items") and (is_dict(owner) or is_a(owner, torch.nn.ModuleDict)):
        held = owner._modules if is_a(owner, torch.nn.ModuleDict) else owner
        values = Some(tuple(held.values()))
        return values if name == "values" else Pairs((NOTHING, values))
    if name in (*ITSELF, *DTYPES) and is_a(owner, torch.nn.Module):
        return owner  # it gives itself
    if name in ("get", "setdefault", "pop") and call.args and is_dict(owner):
        key = evaluate(call.args[0], names)
        return entry(owner, key) if key is not NOTHING else Some(picked(owner) or ())
    return NOTHING


def _each_of(value: Any) -> Any:
    held = elements(value) if type(value) in (list, tuple, deque) else None
    return Some(held) if held is not None else value


def _some(found: Iterable[Any]) -> tuple[Any, ...]:
    try:
        return tuple(found)[:_MOST]
    except Exception:  # a module that does not tell
        return ()


def names_given(target: ast.expr, value: Any) -> Iterator[tuple[ast.expr, Any]]:
    """What the parts of a loop's target are in one round."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
        return
    parts = value.parts if isinstance(value, Pairs) and len(value.parts) == len(target.elts) else ()
    if not parts and type(value) in (tuple, list) and len(value) == len(target.elts):
        parts = tuple(value)
    for number, each in enumerate(target.elts):
        yield from names_given(each, parts[number] if parts else NOTHING)


def without_plain(value: Any) -> Any:
    """The same without numbers and words, which another call may make others of."""
    if type(value) is tuple:
        return tuple(map(without_plain, value))
    return NOTHING if type(value) in PLAIN else value


def of_super(func: ast.Attribute, owner: Any, file: str) -> list[MethodType]:
    """The method that ``super().name`` is of an object: of the classes behind that in which the line stands."""
    within, kinds = innermost(tree_of(file), func.lineno, (ast.ClassDef,)), [*type(owner).__mro__]
    at = next((n for n, kind in enumerate(kinds) if within is not None and kind.__name__ == within.name), len(kinds))
    found = next((vars(kind)[func.attr] for kind in kinds[at + 1 :] if func.attr in vars(kind)), None)
    return [MethodType(found, owner)] if type(found) is FunctionType else []


def function_of(value: Any) -> tuple[FunctionType | None, Any]:
    """The function that a call of it runs, and the object that it belongs to."""
    owner = NOTHING
    if type(value) is MethodType:
        owner, value = value.__self__, value.__func__
    try:
        inner = unwrap(value) if type(value) is FunctionType else None
    except ValueError:
        inner = None
    return (inner, owner) if isinstance(inner, FunctionType) else (None, owner)


def remakes(function: Any) -> bool:
    """Whether a function of torch's makes a module's weights otherwise: by a parametrization, or a mask."""
    named = str(getattr(function, "__name__", ""))
    return not named.startswith("is_") and bool(_REMAKES.match(str(getattr(function, "__module__", ""))))


def has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps tensors between its steps."""
    plain = isinstance(optimizer, torch.optim.SGD) and not any(g["momentum"] for g in optimizer.param_groups)
    return bool(optimizer.state) or not plain


def is_torchs(module: torch.nn.Module, name: str) -> bool:
    """Whether a method is as torch has it."""
    return getattr(type(module), name, None) is getattr(torch.nn.Module, name)


def is_exchange(node: ast.AST) -> bool:
    """Whether a statement is ``a, b = b, a``."""
    target, value = (node.targets[0], node.value) if isinstance(node, ast.Assign) else (None, None)
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    return [ast.unparse(each) for each in target.elts] == [ast.unparse(each) for each in reversed(value.elts)]


def is_table(owner: Any) -> bool:
    """Whether ``update`` gives it entries."""
    return type(owner) is dict or isinstance(owner, Held) or owner is os.environ


def are_types(kinds: Any) -> bool:
    """Whether ``isinstance`` takes it."""
    return isinstance(kinds, type) or (isinstance(kinds, tuple) and all(isinstance(k, type) for k in kinds))
