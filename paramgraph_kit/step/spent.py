"""Results whose backward pass is done: ``return loss`` after ``loss.backward()``.

Such a tensor says that it needs gradients, and no backward pass can go through it any more: torch has freed what that
needs. A launch returns its like, through which no backward pass can go either.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

import torch

MOST = 10_000  # operations that are looked at
_TWICE = "a second time"
_detach = torch.Tensor.detach  # users replace it


def is_spent(tensor: torch.Tensor) -> bool:
    """Whether a backward pass has freed what another one would need.

    >>> x = torch.ones(2, requires_grad=True)
    >>> loss = x.square().sum() + 1
    >>> is_spent(loss), loss.backward(), is_spent(loss)
    (False, None, True)
    """
    pending, seen = deque([tensor.grad_fn]), set[Any]()
    while pending and len(seen) < MOST:
        node = pending.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node) is _SPENT:
            return True
        if (told := _told(node)) is not None:
            return told
        pending += [each for each, _ in node.next_functions]
    return False


def _told(node: Any) -> bool | None:
    """Whether an operation's tensors are freed; None where it keeps none."""
    names = ["saved_tensors"] if hasattr(type(node), "saved_tensors") else _saved(type(node))
    for name in names:
        try:
            held = getattr(node, name)
        except RuntimeError as error:
            return _TWICE in str(error)
        if any(isinstance(x, torch.Tensor) for x in (held if isinstance(held, (list, tuple)) else [held])):
            return False
    return None


def _saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_saved_")]


class _Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        return _detach(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time: this tensor was left by a whole step of "
            "pgk.parameterize, its backward pass included. Make the second backward pass in the step too."
        )


_SPENT = _Spent._backward_cls  # of the nodes that applying it makes


def is_bare_spent(tensor: torch.Tensor) -> bool:
    """Whether it comes from ``spent``, with nothing else behind it.

    >>> is_bare_spent(spent(torch.tensor(2.0))), is_bare_spent(torch.tensor(2.0))
    (True, False)
    """
    return type(tensor.grad_fn) is _SPENT


def spent(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, needing gradients, with the backward pass done.

    >>> loss = spent(torch.tensor(2.0))
    >>> loss.requires_grad, loss.item(), loss.is_leaf
    (True, 2.0, False)
    """
    with torch.enable_grad():  # detached before: what it came from is not behind it
        return _Spent.apply(_leaf(), _detach(tensor))  # type: ignore[no-any-return, no-untyped-call]


@cache
def _leaf() -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), device="cpu", requires_grad=True)
