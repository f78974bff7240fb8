"""Arguments and rates of which another makes a function capture again: ``if features is not self.features: ...``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.one_call import Caller
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.trace.model import Failure

_UNREAD = (": this call does not read it", ": no line of this call reads it")
_GIVEN = re.compile(r"=\s*(?:\w+,\s*)?(\w+)\b")
_RATE = "learning-rate-frozen"
_OTHER = 0.75  # times the rate


def without_captured_again(caller: Caller, told: list[Failure], regions: Iterable[Region]) -> list[Failure]:
    """The same, without those of which no replay is wrong: a call with another tensor, or rate, captures anew."""
    if any(f.code == _RATE for f in told) and _captures_at_another_rate(caller, regions):
        told = [f for f in told if f.code != _RATE]
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


def _captures_at_another_rate(caller: Caller, regions: Iterable[Region]) -> bool:
    """Whether a call captures where the optimizers that its captures read have other rates."""
    read = [use.value() for region in regions if region.values is not None for use in region.values.uses]
    optimizers = {id(each): each for each in read if is_a(each, torch.optim.Optimizer)}.values()
    groups = [group for each in optimizers for group in each.param_groups if isinstance(group.get("lr"), float)]
    then = [group["lr"] for group in groups]
    if not groups:
        return False
    for group in groups:
        group["lr"] *= _OTHER
    try:
        call = caller.call(caller.args, caller.kwargs)
    finally:
        for group, rate in zip(groups, then, strict=True):
            group["lr"] = rate
    return call.captures and call.ended is None


def _has_tensor(value: Any) -> bool:
    return type(value) in (list, tuple, dict, torch.Tensor) and any(type(t) is torch.Tensor for t in tree_leaves(value))


def _another(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), value)
