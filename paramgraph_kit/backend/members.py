"""What a traced function names beside its arguments: parameters and buffers, which become inputs, and plain values.

All are looked up anew at every call; tensors are swapped for traced ones while tracing.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import nn

from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

# Values that a trace takes as they are: part of its key, and constants in its graphs.
PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.Size,
         enum.Enum)  # fmt: skip

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True, slots=True)
class Members:
    """Where the parameters and buffers of some modules are kept, so that a call can read today's."""

    modules: tuple[nn.Module, ...]  # all of them, children included, each once
    names: tuple[str, ...]
    places: tuple[tuple[dict[str, Any], str], ...]  # one for each name; a tied parameter has several
    sources: tuple[int, ...]  # for each place, its position among ``tensors()``
    settings: tuple[
        tuple[dict[str, Any], str], ...
    ]  # plain values that are attributes or globals: ``eps``, ``training``
    cells: tuple[types.CellType, ...]  # plain values in closures

    hooks: tuple[dict[int, Any], ...]  # of the modules; the keys are unique in the process
    children: tuple[dict[str, Any], ...]
    globals: tuple[tuple[dict[str, Any], str], ...]  # that hold modules
    closures: tuple[types.CellType, ...]  # that hold modules
    parts: tuple[Any, ...]  # what was in these three
    owners: tuple[dict[str, Any], ...]  # of parameters and buffers
    count: int  # of these, None included

    def values(self) -> list[Any]:
        """Today's plain values and hooks, which a trace has baked in."""
        values = [owner.get(key) for owner, key in self.settings] + [cell.cell_contents for cell in self.cells]
        return values + [number for hooks in self.hooks for number in hooks]

    def tensors(self) -> list[torch.Tensor] | None:
        """Today's parameters and buffers, each object once; None if the modules are made of other parts now."""
        parts = [child for children in self.children for child in children.values()]
        parts += [owner.get(key) for owner, key in self.globals] + [cell.cell_contents for cell in self.closures]
        if sum(map(len, self.owners)) != self.count or len(parts) != len(self.parts):
            return None
        if not all(map(is_, parts, self.parts)):
            return None
        last = -1
        found: list[torch.Tensor] = []
        for (owner, key), source in zip(self.places, self.sources, strict=True):
            value = owner.get(key)
            if not isinstance(value, torch.Tensor):
                return None
            if source > last:
                found.append(value)
                last = source
            elif value is not found[source]:
                return None
        return found

    def unique_names(self) -> list[str]:
        """One name for each of ``tensors()``: of a tied parameter the first."""
        first: dict[int, str] = {}
        for name, source in zip(self.names, self.sources, strict=True):
            first.setdefault(source, name)
        return [first[source] for source in sorted(first)]


def members_of(fn: Any) -> Members:
    """What ``fn`` names: itself, ``self``, closures, globals and a partial's arguments, and everything in modules."""
    found = _Named()
    while isinstance(fn, functools.partial):
        found.add([*fn.args, *fn.keywords.values()])
        fn = fn.func
    found.add(fn)
    owner = getattr(fn, "__self__", None)
    found.add(owner)
    if owner is not None and not isinstance(owner, nn.Module | types.ModuleType):
        found.note(getattr(owner, "__dict__", {}))
    function = getattr(fn, "__func__", fn)
    if isinstance(function, types.FunctionType):
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # named in the function, but not yet bound
                if isinstance(cell.cell_contents, PLAIN):
                    found.cells.append(cell)
                elif found.add(cell.cell_contents):
                    found.closures.append(cell)
        scope = {
            name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
        }
        found.globals += [(function.__globals__, name) for name, value in scope.items() if found.add(value)]
        found.settings += [(function.__globals__, name) for name, value in scope.items() if isinstance(value, PLAIN)]
    return found.members()


class _Named:
    """Collects what a function names."""

    def __init__(self) -> None:
        self.modules: dict[int, tuple[str, nn.Module]] = {}
        self.settings: list[tuple[dict[str, Any], str]] = []
        self.cells: list[types.CellType] = []
        self.globals: list[tuple[dict[str, Any], str]] = []
        self.closures: list[types.CellType] = []

    def add(self, value: Any) -> bool:
        """Take the modules in a value; False if there are none."""
        if isinstance(value, list | tuple):
            return sum(self.add(each) for each in value) > 0  # of all, not up to the first
        if isinstance(value, dict):
            return self.add(list(value.values()))
        if not isinstance(value, nn.Module) or isinstance(value, torch.jit.ScriptModule):
            return False
        for path, module in value.named_modules():
            if id(module) not in self.modules:
                self.modules[id(module)] = path, module
                self.note(module.__dict__)
        return True

    def note(self, attributes: dict[str, Any]) -> None:
        self.settings += [(attributes, name) for name, value in attributes.items() if isinstance(value, PLAIN)]

    def members(self) -> Members:
        names: list[str] = []
        places: list[tuple[dict[str, Any], str]] = []
        for path, module in self.modules.values():
            for owner in (module._parameters, module._buffers):
                for key, value in owner.items():
                    if value is None:
                        self.settings.append((owner, key))
                        continue
                    names.append(f"{path}.{key}".lstrip("."))
                    places.append((owner, key))
        positions: dict[int, int] = {}
        sources = tuple(positions.setdefault(id(owner[key]), len(positions)) for owner, key in places)
        modules = tuple(module for _, module in self.modules.values())
        children = tuple(module._modules for module in modules)
        parts: list[Any] = [child for each in children for child in each.values()]
        parts += [owner[key] for owner, key in self.globals] + [cell.cell_contents for cell in self.closures]
        owners = tuple(owner for module in modules for owner in (module._parameters, module._buffers))
        return Members(
            modules,
            tuple(names),
            tuple(places),
            sources,
            tuple(self.settings),
            tuple(self.cells),
            tuple(module.__dict__[kind] for module in modules for kind in _HOOKS),
            children,
            tuple(self.globals),
            tuple(self.closures),
            tuple(parts),
            owners,
            sum(map(len, owners)),
        )


@contextmanager
def swapped(members: Members, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let the modules see ``tensors`` in the place of their own, and nothing of the block stay behind.

    Raises:
        RefusedError: the block gave a module another tensor or attribute, which a launched graph would not do.
    """
    kept = [owner[key] for owner, key in members.places]
    before = [_attributes(module) for module in members.modules]
    for (owner, key), source in zip(members.places, members.sources, strict=True):
        owner[key] = tensors[source]
    changed = ""
    try:
        yield
        for name, (owner, key), source in zip(members.names, members.places, members.sources, strict=True):
            if owner.get(key) is not tensors[source]:
                changed = changed or name
    finally:
        for (owner, key), value in zip(members.places, kept, strict=True):
            owner[key] = value
        for module, attributes in zip(members.modules, before, strict=True):
            for name in _restore(module, attributes):
                changed = changed or f"{type(module).__name__}.{name}"
    if changed:
        raise RefusedError(
            Reason(
                "side-effect",
                f"the call assigns {changed}, which a graph would not do again: write into a buffer in place instead",
            )
        )


def _attributes(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    own = module.__dict__
    return [(d, dict(d)) for d in (own, own["_parameters"], own["_buffers"], own["_modules"])]


def _restore(module: nn.Module, attributes: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Undo assignments, and name them."""
    changed: list[str] = []
    for now, then in attributes:
        names = [k for k in {**now, **then} if k not in now or k not in then or now[k] is not then[k]]
        for name in names:
            if name not in then:
                del now[name]
            else:
                now[name] = then[name]
        changed += names
    return changed
