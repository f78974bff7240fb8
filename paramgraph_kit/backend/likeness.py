"""Whether a module may use what was compiled for another: Dynamo's graphs belong to code, which many modules share."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Likeness:
    """What Dynamo's guards tell modules of one class apart by, as far as a module shows it."""

    kind: weakref.ref[type]  # weakly: code leads to its graphs, and a class to its code
    parts: tuple[tuple[str, weakref.ref[type]], ...]
    tensors: tuple[Any, ...]
    plain: tuple[Any, ...]

    def fits(self, module: torch.nn.Module, *, wholly: bool) -> bool:
        """Whether a module of the same class has such parts and tensors; ``wholly``: these plain attributes, too."""
        other = likeness(module)
        same = (self.parts, self.tensors) == (other.parts, other.tensors)
        return same and (not wholly or self.plain == other.plain)


def likeness(module: torch.nn.Module) -> Likeness:
    """What a module is now.

    >>> [likeness(torch.nn.Linear(2, 3)).fits(torch.nn.Linear(2, n), wholly=True) for n in (3, 4)]
    [True, False]
    """
    tensors = (*module.named_parameters(), *module.named_buffers())
    plain = tuple(
        (path, name, value)
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if _is_plain(value) and name != "training" and not name.startswith("_")
    )
    return Likeness(
        weakref.ref(type(module)),
        tuple((path, weakref.ref(type(each))) for path, each in module.named_modules()),
        tuple((name, () if is_lazy(tensor) else tuple(tensor.shape), tensor.dtype) for name, tensor in tensors),
        tuple((path, name, repr(value)) for path, name, value in plain),  # as text: 1 is no True
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value))
