"""What a function of the user's can name: its own code, its globals and closure, its owner, and its classes."""

from __future__ import annotations

import inspect
import types
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.driver.files import is_library_code
from paramgraph_kit.rewrite.source.given import inner
from paramgraph_kit.rewrite.source.place import NUMBER


def entry_of(function: Any) -> types.FunctionType | None:
    """The user's function behind a method, a partial, a decorated one, a module or another object."""
    function = _unwrapped(inner(function))
    if isinstance(function, torch.nn.Module):
        function = function.forward
    elif not isinstance(function, (types.FunctionType, types.MethodType)):
        function = getattr(function, "__call__", None)  # noqa: B004 - the bound method is wanted
    found = inspect.unwrap(getattr(function, "__func__", function))
    return found if isinstance(found, types.FunctionType) else None


def _unwrapped(function: Any) -> Any:
    """What a function was made around: ``torch.no_grad()(model.forward)`` leads to the bound method."""
    while isinstance(function, types.FunctionType) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def names_of(function: Any) -> dict[str, Any]:
    """Global names that a function of the user's can read, and those of the function around it."""
    entry = entry_of(function)
    if entry is None:
        return {}
    cells = dict(zip(entry.__code__.co_freevars, entry.__closure__ or (), strict=True))
    around: dict[str, Any] = {name: cell.cell_contents for name, cell in cells.items() if _is_filled(cell)}
    return entry.__globals__ | around


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def owner_of(function: Any) -> Any:
    """``self`` of what is called, or None."""
    function = _unwrapped(inner(function))
    if isinstance(function, types.FunctionType):
        return None
    return getattr(function, "__self__", function)


def of_classes(state: HostState) -> list[types.FunctionType]:
    """Functions of the user's classes that are named without an instance, as those of an autograd.Function."""
    members = [m for holder in state.holders if holder.kind == "class" for m in vars(holder.target).values()]
    found = [inspect.unwrap(getattr(member, "__func__", member)) for member in members]  # not what `no_grad()` makes
    own = [each for each in found if isinstance(each, types.FunctionType) and each not in state.functions]
    return [each for each in own if not is_library_code(each.__code__, each.__globals__)]


def numbers_of(state: HostState) -> frozenset[str]:
    """Names of attributes that hold a number."""
    return attributes_with(state, NUMBER)


def attributes_with(state: HostState, kind: type | tuple[type, ...]) -> frozenset[str]:
    """Names of attributes that hold something of a kind."""
    values = (holder.read() for holder in state.holders if holder.kind == "attributes")
    return frozenset(str(name) for each in values for name, value in each.items() if isinstance(value, kind))


def attributes_of(state: HostState) -> dict[str, Any]:
    """What attributes hold, and buffers, by their names; those that several objects have are left out.

    Modules that several objects have under one name are together under it.
    """
    found: dict[str, Any] = {}
    twice = set[str]()
    for holder in state.holders:
        if holder.kind != "attributes" or holder.of_torch:
            continue
        held = dict(holder.read())
        for name, value in (held | dict(held.get("_buffers") or {})).items():
            twice |= {name} & found.keys()
            found[name] = value
        for name, part in (held.get("_modules") or {}).items():
            before = [found[name]] if isinstance(found.get(name), torch.nn.Module) else []
            found[name] = torch.nn.ModuleList([*before, part]) if before else part
    return {name: value for name, value in found.items() if name not in twice}


def settings_of(state: HostState) -> dict[str, Any]:
    """Numbers, texts and tables that attributes hold, one for those that several objects have; all of them are such."""
    found: dict[str, Any] = {}
    others = set[str]()
    for holder in state.holders:
        for name, value in holder.read().items() if holder.kind == "attributes" and not holder.of_torch else ():
            kind = _kind_of(value)
            others |= {name} if not kind or kind != _kind_of(found.get(name, value)) else set()
            found.setdefault(name, value)
    return {str(name): value for name, value in found.items() if name not in others}


def _kind_of(value: Any) -> str:
    if isinstance(value, (*NUMBER, str, type(None), torch.dtype, torch.device)):
        return "one"
    on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.requires_grad
    return type(value).__name__ if on_host or isinstance(value, (list, tuple, np.ndarray)) else ""


def keeps_graph(value: Any) -> bool:
    """Whether it is a function of a step's own, which would keep what the step has computed, and its graph."""
    for each in getattr(value, "__closure__", None) or ():
        with suppress(ValueError):  # an empty one
            if isinstance(each.cell_contents, torch.Tensor) and each.cell_contents.grad_fn is not None:
                return True
    return False
