"""Lists that give each of their tensors the place of the next: what is read is another one only once all have gone on.

``past = past[1:] + [x]`` that begins with one tensor at three places has others at the first only in the fourth call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.trace.model import Failure

_MOST = 16  # calls that are made for it


def moved_along(base: Call, seen: Sequence[Failure], again: Callable[[], Call]) -> list[Failure]:
    """What reads another tensor in one of the calls that it takes until a list has none of those it began with."""
    told = {f.frame for f in (*base.found, *seen)}
    for _ in range(max((_places(c.before, c.after) for c in base.changes), default=0)):
        other = again()
        if other.ended is not None:
            break
        found = differences(base.steps, other.steps, random_drawn=False)
        if found := [f for f in found if f.code == "stale-input" and f.frame not in told]:
            return found
    return []


def _places(before: Any, after: Any) -> int:
    """How many places a list of tensors has, where one has gone from one of them to another."""
    lists = all(type(each) in (list, deque, tuple) and 1 < len(each) <= _MOST for each in (before, after))
    if not lists or not all(isinstance(each, torch.Tensor) for each in (*before, *after)):
        return 0
    one, other = list(before), list(after)
    along = any(a is b for x, y in ((one[1:], other), (one, other[1:])) for a, b in zip(x, y, strict=False))
    return len(other) if along else 0
