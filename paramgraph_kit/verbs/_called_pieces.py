"""Functions of the user's that a step calls, compiled each for itself: ``train`` of an epoch that also validates."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.rewrite.source.reach import entry_of

MOST_FUNCTIONS = 4


@dataclass(frozen=True, slots=True)
class Called:
    """A function, and where the step finds it."""

    path: str  # as the user writes it: ``train``, ``trainer.critic_step``
    holder: dict[str, Any]
    name: str

    def compiling(self) -> str:
        """What compiles it there."""
        return f'{self.path} = torch.compile({self.path}, backend="paramgraph")'


def functions_called(function: Any, owner: Any, me: str) -> list[Called]:
    """The user's own functions, and methods of the same object, that a function names."""
    entry = entry_of(function)
    if entry is None:
        return []
    code, space = entry.__code__, entry.__globals__
    found = [Called(name, space, name) for name in code.co_names if _is_near(space.get(name), code)]
    for name in code.co_names if owner is not None and hasattr(owner, "__dict__") else ():
        method = getattr(type(owner), name, None)
        if _is_near(method, code) and name not in vars(owner):
            found.append(Called(f"{me}.{name}", vars(owner), name))
    return found if len(found) <= MOST_FUNCTIONS else []


def _is_near(value: Any, code: types.CodeType) -> bool:
    """Whether something is a plain function of the same file that takes no part in another way of running."""
    inner = inspect.unwrap(value) if isinstance(value, types.FunctionType) else None
    if inner is None or inner.__code__.co_filename != code.co_filename or inner.__code__ is code:
        return False
    return not inner.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)


@contextmanager
def compiled_there(every: Iterable[Called], owner: Any) -> Iterator[None]:
    """Functions are compiled in the body of ``with``, and are as they were after it."""
    before: list[tuple[Called, Any]] = []
    try:
        for each in every:
            known = each.holder.get(each.name)
            before.append((each, known))
            each.holder[each.name] = torch.compile(known or getattr(owner, each.name), backend=paramgraph)
        yield
    finally:
        for each, known in before:
            if known is None:
                each.holder.pop(each.name, None)
            else:
                each.holder[each.name] = known
