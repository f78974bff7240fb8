"""What a value is and holds, whatever it is: it may hold itself, or raise when it is asked for its class."""

from __future__ import annotations

from contextlib import suppress
from inspect import unwrap
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeGuard, TypeVar

import torch
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, as a result is one."""
    with suppress(Exception):
        return [each for each in tree_leaves(value) if issubclass(type(each), torch.Tensor)]
    return []


def is_a(value: Any, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Whether a value is of a kind, without asking itself."""
    return issubclass(type(value), kinds)


def is_graph(value: Any) -> bool:
    """Whether a value captures and replays, as a ``CUDAGraph`` does."""
    with suppress(Exception):
        return hasattr(type(value), "capture_begin") and hasattr(type(value), "replay")
    return False


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
    """What an object has of its own; nothing where it does not tell."""
    with suppress(Exception):
        found: dict[str, Any] = vars(value)
        return found
    return {}


def code_of(value: Any) -> CodeType | None:
    """The code of a function, or of a method; other objects may answer what they like."""
    function = value.__func__ if is_a(value, MethodType) else value
    return function.__code__ if is_a(function, FunctionType) else None


def methods_of(kind: type) -> dict[str, CodeType]:
    """The code of each method of a class, also of one that is decorated."""
    held = [(n, f) for k in reversed(kind.__mro__) for n, f in vars(k).items() if isinstance(f, FunctionType)]
    return {name: code for name, f in held if (code := code_of(unwrap(f))) is not None}


def cells_of(function: Any) -> dict[str, CellType]:
    """The variables that a function shares with the one around it, but for those that have no value."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell for name, cell in pairs if _is_filled(cell)}


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only way to ask
    except ValueError:
        return False
    return True
