"""Values that Python holds, in the words of a reason."""

from __future__ import annotations

from typing import Any

import torch

from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.backend.raw import KINDS, length_of


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
    if isinstance(value, KINDS):
        return f"a {type(value).__name__} of {length_of(value)}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
