"""Gradients of a launched backward say so where somebody asks for their own gradients, and never pass for constants."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

ONCE = (
    "torch.compile with aot_autograd does not currently support double backward, nor does pgk.parameterize: where "
    "gradients of gradients are wanted, call the function or module as it is (what parameterize returned has it as "
    "__wrapped__)"
)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(_ctx: Any, *_: Any) -> Any:
        raise RuntimeError(ONCE)


def only_once(gradients: Sequence[Any], node: Any) -> tuple[Any, ...]:
    """The gradients that ``node`` of an autograd graph gives, which lead to all leaves that its inputs come from.

    A gradient that led to none of them would be "unused" to ``torch.autograd.grad``, and a None is easily a zero.
    """
    tensors = [x for x in gradients if isinstance(x, torch.Tensor)]
    also = torch.ones((), requires_grad=True)  # so that it is never left out
    found = iter(_Once.apply(len(tensors), *tensors, also, *_leaves(node)))  # type: ignore[no-untyped-call]
    return tuple(next(found) if isinstance(x, torch.Tensor) else x for x in gradients)


def say_once(results: Sequence[Any]) -> None:
    """Let the gradients that go through results of a compiled function be such; for this call of it."""
    todo = [x.grad_fn for x in results if isinstance(x, torch.Tensor) and x.grad_fn is not None]
    seen: set[Any] = set()
    for node in todo:  # grows: a result may be a view of what the function has made
        if node in seen:
            continue
        seen.add(node)
        if "CompiledFunction" in node.name():
            # The node would never go if its hook held it.
            node.register_hook(functools.partial(_wrapped, weakref.ref(node)))
        elif len(seen) < 2 * len(results):
            todo += [following for following, _ in node.next_functions if following is not None]


def _wrapped(node: weakref.ref[Any], gradients: Sequence[Any], _taken: Sequence[Any]) -> tuple[Any, ...] | None:
    return only_once(gradients, node()) if torch.is_grad_enabled() else None


def _leaves(node: Any) -> list[torch.Tensor]:
    todo, seen, found = [node], set[Any](), []
    while todo:
        each = todo.pop()
        if each is None or each in seen:
            continue
        seen.add(each)
        if (leaf := getattr(each, "variable", None)) is not None:
            found.append(leaf)
        todo += [following for following, _ in each.next_functions]
    return found
