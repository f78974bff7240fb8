"""When two values that Python holds are the same to a captured step."""

from __future__ import annotations

from collections import deque
from operator import is_
from typing import Any

import torch

from paramgraph_kit.backend.plain import PLAIN

_DEEP = 8


def same(a: Any, b: Any, depth: int = 0) -> bool:
    """Identity for tensors and objects, value for plain values, and for containers that of their parts.

    >>> same([1, (2.0, None)], [1, (2.0, None)]), same(0.0, -0.0), same(1, True)
    (True, False, False)
    """
    if a is b:
        return True
    if type(a) is not type(b) or depth > _DEEP:
        return False
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)  # of nan and the sign of zero too
    if isinstance(a, PLAIN):
        return bool(a == b)
    if isinstance(a, dict):
        if len(a) != len(b) or getattr(a, "default_factory", None) is not getattr(b, "default_factory", None):
            return False
        if all(map(is_, a, b)) and all(map(is_, a.values(), b.values())):
            return True  # nearly always, and at the speed of C
        return all(key in b and same(value, b[key], depth + 1) for key, value in a.items())
    if isinstance(a, (list, tuple, deque)):
        if len(a) != len(b):
            return False
        return all(map(is_, a, b)) or all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, (set, frozenset)):
        return bool(a == b)
    return False


def shown(value: Any) -> str:
    """A value in a few words, without addresses.

    >>> shown(3), shown([1, 2]), shown(object())
    ('3', 'a list of 2', 'an object')
    """
    if isinstance(value, torch.Tensor):
        return f"a tensor of {list(value.shape)}"
    if isinstance(value, PLAIN):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    if isinstance(value, (list, tuple, dict, set, deque)):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
