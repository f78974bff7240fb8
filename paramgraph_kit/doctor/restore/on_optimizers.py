"""Numbers that a user's lines keep on what is torch's own, and that go on from call to call there."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

import torch

from paramgraph_kit.doctor.number_kinds import AMOUNTS
from paramgraph_kit.doctor.restore.classes import options
from paramgraph_kit.doctor.restore.holder import Change, Holder
from paramgraph_kit.doctor.restore.out_of_sight import stored_names

_SCHEDULES = (torch.optim.lr_scheduler, torch.optim.swa_utils)


def counted(
    before: list[tuple[dict[str, Any], str, Any]], after: list[tuple[dict[str, Any], str, Any]]
) -> list[Change]:
    """Numbers of the user's on what is torch's own that have moved between two answers of ``set_on_modules``."""
    then = {(id(held), name): value for held, name, value in before}
    own = (each for each in after if "training" not in each[0] or each[1] not in options())  # of a module
    pairs = ((held, n, then.get((id(held), n)), value) for held, n, value in own)
    moved = ((held, n, a, b) for held, n, a, b in pairs if {type(a), type(b)} <= {*AMOUNTS} and a != b)
    return [
        Change("container", "param_groups", a, b, key=n) if "params" in held else Change("attribute", n, a, b)
        for held, n, a, b in moved
    ]


def set_on_optimizers(holders: Iterable[Holder], stored: Collection[str]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The numbers of the user's on what is torch.optim's: ``opt.steps += 1``, ``opt.param_groups[0]["k"] += 1``."""
    for holder in holders:
        if not holder.of_torch or holder.of is None or not (holder.of.__module__ or "").startswith("torch.optim"):
            continue
        held = holder.target
        for name in sorted((held.keys() & set(stored)) - _set_by(holder.of)):
            if type(held[name]) in AMOUNTS:
                yield held, name, held[name]
        if issubclass(holder.of, torch.optim.Optimizer):
            known = {*held.get("defaults", ()), *_of_groups()}
            for group in held.get("param_groups", ()):
                for name in [n for n, value in group.items() if n not in known and type(value) in AMOUNTS]:
                    yield group, name, group[name]


@cache
def _set_by(kind: type) -> frozenset[str]:
    """The attributes that a class of torch's sets itself."""
    functions = (f for each in kind.__mro__ for f in vars(each).values() if isinstance(f, types.FunctionType))
    return frozenset[str]().union(*(stored_names(f.__code__) for f in functions))


@cache
def _of_groups() -> frozenset[str]:
    """The entries that schedulers of torch's have in the groups of an optimizer: ``initial_lr``, ``max_momentum``."""
    kinds = [k for module in _SCHEDULES for k in vars(module).values() if isinstance(k, type)]
    codes = [f.__code__ for kind in kinds for f in vars(kind).values() if isinstance(f, types.FunctionType)]
    return frozenset(each for code in codes for each in code.co_consts if isinstance(each, str))
