"""Settings that a step is given as one object, ``generate(prompt, params)``: the same with other numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of, code_of, is_graph
from paramgraph_kit.driver.files import is_library

_MOST = 64  # numbers of one object


def with_others(value: Any, kinds: tuple[type, ...], another: Callable[[Any], Any]) -> Any:
    """An object of the user's, or a dictionary, whose numbers of these kinds are others; anything else as it is.

    What holds anything but plain values is no settings: it may be what the step works on.
    """
    kind = type(value)
    if issubclass(kind, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type)) or is_graph(value):
        return value
    if hasattr(kind, "__dataclass_fields__"):
        held = {name: getattr(value, name, None) for name in kind.__dataclass_fields__}
    else:
        held = value if kind is dict else attributes_of(value) if _is_users(kind) else {}
    plain = all(type(each) in (bool, int, float, str, type(None), tuple, list) for each in held.values())
    moved = {name: another(each) for name, each in held.items() if type(each) in kinds}
    if not plain or not moved or len(held) > _MOST:
        return value
    if kind is dict:
        return held | moved
    made = copy.copy(value)
    for name, each in moved.items():
        object.__setattr__(made, name, each)
    return made


def _is_users(kind: type) -> bool:
    """Whether a class is made by the user's own lines."""
    code = code_of(kind.__dict__.get("__init__"))
    return kind is SimpleNamespace or (code is not None and not is_library(code.co_filename))
