"""Arguments of which another tensor makes a function capture again: ``if features is not self.features: ...``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from paramgraph_kit.doctor.observe.one_call import Caller
from paramgraph_kit.trace.model import Failure

_UNREAD = (": this call does not read it", ": no line of this call reads it")
_GIVEN = re.compile(r"=\s*(?:\w+,\s*)?(\w+)\b")


def without_captured_again(caller: Caller, told: list[Failure]) -> list[Failure]:
    """The same, without those of arguments that no replay reads, as a call with another tensor captures anew."""
    asked = dict[str, bool]()
    kept = []
    for failure in told:
        names = [*_names(caller, failure)] if failure.code == "stale-input" else []
        for name in (n for n in names if n not in asked):
            asked[name] = _captures(caller, name)
        if not names or not all(asked[name] for name in names):
            kept.append(failure)
    return kept


def _names(caller: Caller, failure: Failure) -> Iterator[str]:
    """The arguments that a problem is about: named as unread, or given to a name at its line."""
    given = {name: value for name, value in caller.given().items() if _has_tensor(value)}
    for mark in _UNREAD:
        said, found, _ = failure.message.partition(mark)
        if found:
            yield from said.split(", ")
            return
    text = failure.frame.text if failure.frame is not None else ""
    yield from (name for name in _GIVEN.findall(text) if name in given)


def _captures(caller: Caller, name: str) -> bool:
    """Whether a call captures where another tensor, of the same numbers, is given for one of these."""
    args, kwargs = [*caller.args], {**caller.kwargs}
    _, _, number = name.partition("argument ")
    value = caller.given().get(name)
    places = [i for i, each in enumerate(args) if each is value or str(i + 1) == number]
    if name in kwargs:
        kwargs[name] = _another(kwargs[name])
    elif places:
        args[places[0]] = _another(args[places[0]])
    else:
        return False
    call = caller.call(tuple(args), kwargs)
    return call.captures and call.ended is None


def _has_tensor(value: Any) -> bool:
    return type(value) in (list, tuple, dict, torch.Tensor) and any(type(t) is torch.Tensor for t in tree_leaves(value))


def _another(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), value)
