"""Tensors that learn, whoever holds them: leaves of autograd that require gradients."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import compress
from types import CodeType, FunctionType

import torch

from paramgraph_kit.driver.collection import everything

# What gives `p` a gradient to add to: what a warm-up has left there goes on, in the program as without a graph.
ZEROS = "torch.zeros_like(p) if p.grad is None else p.grad"


_NO_GRADIENTS = frozenset(
    """no_grad enable_grad set_grad_enabled is_grad_enabled requires_grad requires_grad_ retains_grad grad_fn""".split()  # noqa: SIM905
)


def name_gradients(functions: Iterable[FunctionType]) -> bool:
    """Whether some functions may do something with gradients that no backward pass and no optimizer tells of.

    >>> name_gradients([lambda p: p.grad.zero_()]), name_gradients([lambda p: torch.no_grad()])
    (True, False)
    """
    return any(_names_gradients(function.__code__) for function in functions)


@lru_cache(4096)
def _names_gradients(code: CodeType) -> bool:
    said = {*code.co_names, *(each for each in code.co_consts if isinstance(each, str) and each.isidentifier())}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    words = (word in each for each in said - _NO_GRADIENTS for word in ("grad", "backward", "unscale"))
    return any(words) or any(map(_names_gradients, inner))


def learning() -> Iterator[torch.Tensor]:
    """All of them that the process has, which takes 0.1 s: there are half a million objects to look at."""
    everything()  # also those from ahead of a diagnosis, which it sets aside where it rewrites
    kinds, objects = {*_kinds_of(torch.Tensor)}, gc.get_objects()
    yield from filter(_learns, compress(objects, map(kinds.__contains__, map(type, objects))))


def _kinds_of(kind: type) -> Iterator[type]:
    """A class, and all that are made of it."""
    yield kind
    made: list[type] = type.__subclasses__(kind)
    for each in made:
        yield from _kinds_of(each)


def _learns(tensor: torch.Tensor) -> bool:
    with suppress(RuntimeError):  # a view made without gradients says nothing of itself once its base is written
        return tensor.is_leaf and tensor.requires_grad
    return False
