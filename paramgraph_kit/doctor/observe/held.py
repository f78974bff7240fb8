"""What a value is and holds, whatever it is: it may hold itself, or raise when it is asked for its class."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from dis import get_instructions
from functools import cached_property, lru_cache, partial
from inspect import getattr_static, unwrap
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeGuard, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.driver.files import is_library

T = TypeVar("T")
_STORES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF")


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, as a result is one."""
    with suppress(Exception):
        return [each for each in tree_leaves(value) if issubclass(type(each), torch.Tensor)]
    return []


def results_in(value: Any) -> list[torch.Tensor]:
    """The same, with those of objects that a function returns, as of a dataclass; what replays itself is no result."""
    found = tensors_in(value)
    with suppress(Exception):
        for each in (each for each in tree_leaves(value) if not is_a(each, (torch.Tensor, torch.nn.Module, type))):
            parts = [*attributes_of(each).values()]
            found += tensors_in(parts) if not any(map(is_graph, tree_leaves(parts))) else []
    return found


def is_a(value: Any, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Whether a value is of a kind, without asking itself."""
    return issubclass(type(value), kinds)


def is_graph(value: Any) -> bool:
    """Whether a value captures and replays, as a ``CUDAGraph`` does."""
    return makes_graphs(type(value))


def makes_graphs(kind: type) -> bool:
    """The same of a value's type."""
    with suppress(Exception):
        return hasattr(kind, "capture_begin") and hasattr(kind, "replay")
    return False


def has_librarys_lines(module: torch.nn.Module) -> bool:
    """Whether its forward pass is a library's; one that has none has methods of the user's, which tell themselves."""
    code = getattr(type(module).forward, "__code__", None)
    none = code is getattr(torch.nn.Module.forward, "__code__", None)
    return code is not None and not none and is_library(code.co_filename)


def parameters_in(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters of a module; nothing where it does not tell."""
    with suppress(Exception):
        return list(module.parameters())
    return []


def parameters_at(value: Any) -> list[torch.Tensor]:
    """The parameters of a module, or those that an optimizer steps; none of anything else."""
    if is_a(value, torch.nn.Module):
        return [*parameters_in(value)]
    if is_a(value, torch.optim.Optimizer):
        return [p for group in value.param_groups for p in group["params"]]
    return []


def addresses_of(module: torch.nn.Module) -> list[int]:
    """Where its parameters lie; 0 for one that has no memory, or none yet."""
    found = []
    for parameter in parameters_in(module):
        found.append(0)
        with suppress(Exception):
            found[-1] = parameter.data_ptr()
    return found


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object has of its own, also by the slots of its class; nothing where it does not tell."""
    found: dict[str, Any] = {}
    with suppress(Exception):
        found = vars(value)
    slots = _slots(type(value))  # type: ignore[arg-type]  # mypy: a type is none that is Hashable
    return {**found, **{n: each for n, slot in slots for each in _in_slot(value, slot)}} if slots else found


@lru_cache(1024)
def _slots(kind: type) -> tuple[tuple[str, MemberDescriptorType], ...]:
    """Those that a class of the user's declares, and the classes that it is made of."""
    slotted = [vars(k) for k in kind.__mro__ if "__slots__" in vars(k)]
    codes = [code_of(each) for held in slotted for each in held.values()]
    if all(code is None or is_library(code.co_filename) for code in codes):
        return ()
    return tuple((n, v) for held in slotted for n, v in held.items() if type(v) is MemberDescriptorType)


def _in_slot(value: Any, slot: MemberDescriptorType) -> Iterator[Any]:
    with suppress(AttributeError):  # nothing is there yet
        yield slot.__get__(value)


def code_of(value: Any) -> CodeType | None:
    """The code of a function, or of a method; other objects may answer what they like."""
    function = value.__func__ if is_a(value, MethodType) else value
    return function.__code__ if is_a(function, FunctionType) else None


def methods_of(kind: type) -> dict[str, CodeType]:
    """The code of each method of a class, also of one that is decorated."""
    held = [(n, f) for k in reversed(kind.__mro__) for n, f in vars(k).items() if isinstance(f, FunctionType)]
    return {name: code for name, f in held if (code := code_of(unwrap(f))) is not None}


def unbound(function: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The function that a ``partial`` calls in the end, and what it is given with what that has bound."""
    while type(function) is partial:
        with suppress(TypeError, ValueError):  # of a function without a signature
            bound = inspect.signature(function.func).bind_partial(*function.args, **function.keywords)
            given = {**bound.arguments, **given}
        function = function.func
    return function, given


def cells_of(function: Any) -> dict[str, CellType]:
    """The variables that a function shares with the one around it, but for those that have no value."""
    return {name: cell for name, cell in all_cells_of(function).items() if _is_filled(cell)}


def all_cells_of(function: Any) -> dict[str, CellType]:
    """The same with those that have no value yet."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only way to ask
    except ValueError:
        return False
    return True


def attribute_of(value: Any, name: str, default: Any = None) -> Any:
    """What an object has by a name; what its class would make and keep when it is asked for is not asked for."""
    if name not in attributes_of(value) and not is_a(value, (ModuleType, type)):
        found = getattr_static(value, name, None)
        if isinstance(found, cached_property):
            return default
        made = code_of(found.fget) if isinstance(found, property) else None
        if made is not None and any(each.opname in _STORES for each in get_instructions(made)):
            return default
    return getattr(value, name, default)


def file_of(kind: type) -> str:
    """Where a class of the user's is written; "" of any other."""
    for each in vars(kind).values():
        each = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        if (code := code_of(each)) is not None and not code.co_filename.startswith("<"):
            return "" if is_library(code.co_filename) else code.co_filename
    return ""


def is_overridden(name: str, kind: type, own: type) -> bool:
    """Whether objects of a class have another method of a name than that of a class behind it, and do not call that."""
    first = next((each for each in own.__mro__ if name in vars(each)), kind)
    codes = (code_of(each) for between in own.__mro__ if between is not kind for each in vars(between).values())
    calls = any("super" in code.co_names and name in code.co_names for code in codes if code is not None)
    return first is not kind and not calls
