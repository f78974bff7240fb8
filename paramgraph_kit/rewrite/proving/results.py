"""What a step returns and what objects hold, as tensors and numbers that two runs can be compared by."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.rewrite.proving.closeness import Plain

_DEEP = 4  # objects in objects
_OPTIONS = ("capturable", "fused", "foreach")
_NO_RESULT = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type, types.ModuleType, types.FunctionType)


def opened(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """The same with what objects hold in the places of the objects: a dataclass of losses, a distribution.

    >>> opened((1, types.SimpleNamespace(loss=2, parts=[3])))
    (1, {'loss': 2, 'parts': [3]})
    """

    def one(leaf: Any) -> Any:
        held = plain(leaf) if isinstance(leaf, (dict, deque, set)) else vars(leaf) if _is_object(leaf) else None
        return opened(held, (*inside, id(leaf))) if held is not None and id(leaf) not in inside else leaf

    return tree_map(one, plain(value)) if len(inside) <= _DEEP else value


def _is_object(value: Any) -> bool:
    made_by = type(value).__module__
    ours = made_by.startswith(("torch.", "paramgraph_kit.")) and not made_by.startswith("torch.distributions.")
    return hasattr(value, "__dict__") and not isinstance(value, _NO_RESULT) and not ours and not callable(value)


def copied(value: Any) -> Any:
    """The same of the host's, which nothing writes."""
    return tree_map(lambda v: v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v, value)


def held(value: Any) -> Any:
    """Memory of its own that a graph reads."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def plain(value: Any) -> Any:
    """Containers as those that are looked into."""
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, (deque, set)) else value


def flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in a container, and in those that it has."""
    yield from (leaf for leaf in tree_leaves(plain(value)) if isinstance(leaf, torch.Tensor))


def tensors_in(values: list[Any]) -> Iterator[torch.Tensor]:
    """Tensors that dictionaries and lists hold themselves."""
    for each in values:
        held = each.values() if isinstance(each, dict) else each if isinstance(each, (list, tuple)) else (each,)
        yield from (value for value in held if isinstance(value, torch.Tensor))


def known(value: Any) -> list[Any]:
    """The tensors and the numbers that something has."""
    leaves = tree_leaves(plain(value))
    return [v for v in leaves if isinstance(v, (torch.Tensor, bool, int, float, complex)) or hasattr(v, "__array__")]


def flat(value: Any) -> list[Any]:
    """Copies of the tensors and the numbers that something has."""
    return [copied(v) if isinstance(v, torch.Tensor) else _as_tensor(v).as_subclass(Plain) for v in known(value)]


def _as_tensor(value: Any) -> torch.Tensor:
    """A number as a tensor; the digits of one that is larger than int64 holds."""
    wide = type(value) is int and value.bit_length() > 63
    return torch.tensor([*str(value).encode()]) if wide else torch.as_tensor(value)


def numbers(value: Any) -> list[Any]:
    """The numbers that something holds, on the host or, by a rewrite, on the device."""
    leaves = (leaf for leaf in tree_leaves(plain(value)) if not isinstance(leaf, torch.Tensor) or not leaf.dim())
    return flat([leaf for leaf in leaves if not hasattr(leaf, "__array__") or isinstance(leaf, torch.Tensor)])


def without_options(value: Any) -> Any:
    """The same without what says how an optimizer's steps are done, in each of its groups, also of one around it."""
    if type(value) is dict:
        left = _OPTIONS if "params" in value or "foreach" in value else ()
        return {name: without_options(each) for name, each in value.items() if name not in left}
    return [without_options(each) for each in value] if type(value) is list else value
