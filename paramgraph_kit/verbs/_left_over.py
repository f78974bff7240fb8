"""What a notebook still holds of calls that are over: results whose autograd graph would draw a capture away.

Whoever runs ``train(x, y)`` in a cell has its loss in ``Out``, for as long as the kernel lives and without a name to
delete. Its backward pass is done, so that all its graph can still do is be in the way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeGuard

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.driver.collection import circles
from paramgraph_kit.driver.select import device
from paramgraph_kit.step.spent import is_bare_spent, is_spent

MOST = 10_000  # values of one name that are looked at
MOST_NAMED = 3
WHY = "would have drawn a capture to the default stream"


def let_go() -> str:
    """Take the graphs from them, in place; what was done, or "" where there are none, or no notebook."""
    names: list[str] = []
    for name, value in _held():
        if sum(map(_detached, pytree.tree_leaves(value)[:MOST])) + _is_given_anew(name, value):
            names.append(name)
    if not names:
        return ""
    circles()  # exceptions, and the calls that they hold
    named = names if len(names) <= MOST_NAMED else [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} others"]
    listed = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    says = "are detached: their graphs" if names[1:] else "is detached: its graph"
    return f"{listed} of this notebook {says} {WHY}"


def _held() -> Iterator[tuple[str, Any]]:
    """What the cells have shown, and then all that they have given a name."""
    space = _space()
    shown = space.get("Out")
    yield from ((f"Out[{n}]", value) for n, value in (dict(shown) if isinstance(shown, dict) else {}).items())
    yield from ((name, value) for name, value in dict(space).items() if not name.startswith("_") and name != "Out")


def _space() -> dict[str, Any]:
    """The names of the notebook whose cell is running; none elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "get_ipython" in frame.f_globals and "Out" in frame.f_globals:
            return frame.f_globals
        frame = frame.f_back
    return {}


def _detached(value: Any) -> bool:
    """Whether it was a result whose backward pass is done, and has its graph no more."""
    if not _is_over(value) or value._is_view():
        return False
    value.detach_()
    return True


def _is_given_anew(name: str, value: Any) -> bool:
    """Whether a name of the notebook's stood for a part of such a result, and has its numbers without a graph now."""
    if not _is_over(value) or not value._is_view():  # a view cannot be detached in place
        return False
    space = _space()
    if name not in space or space[name] is not value:
        return False
    space[name] = value.data  # detach() would keep what it is a view of
    return True


def _is_over(value: Any) -> TypeGuard[torch.Tensor]:
    if type(value) is not torch.Tensor or value.device != device() or value.grad_fn is None:
        return False
    return not is_bare_spent(value) and is_spent(value)
