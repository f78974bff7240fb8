"""Calls with other values in tensors and arrays of the CPU among the arguments: what these decide is frozen.

``pack_padded_sequence(x, lengths)``: the host makes batch sizes of lengths that it has, and a graph keeps these.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.observe.compare import DECIDED, differences
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.parts_within import tensors_within, with_tensors_within
from paramgraph_kit.trace.model import Failure, Frame

OTHER_VALUES = "(tried other values of "  # what a message has where a tensor of the CPU decides
_MOST_CALLS = 2  # that return
_MOST_ALONE = 6  # that are given others each by itself
_MOST = 1 << 14  # numbers of one that is given others
_KINDS = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()  # noqa: SIM905
_FROZEN = ("scalar-frozen", "size-frozen", "branch-frozen", "cpu-scalar-frozen", "learning-rate-frozen")


def problems(caller: Caller, base: Call, seen: list[Failure]) -> list[Failure]:
    """What other values in such arguments decide, at lines of which that is not told yet."""
    given = [*((f"argument {i + 1}", value) for i, value in enumerate(caller.args)), *caller.kwargs.items()]
    names = {id(value): name for name, value in caller.given().items()}
    names = {at: names.get(id(value), name) for at, (name, value) in enumerate(given)}
    every = [(at, path, each) for at, (_, value) in enumerate(given) for path, each in tensors_within(value)]
    every = [(at, path, each) for at, path, each in every if _is_moved(each)]
    told = {_line(f) for f in (*base.found, *seen)}
    drawn = {f.frame for f in seen if f.code == "host-random"}  # by what cannot be made to draw the same
    found = list[Failure]()
    waiting = [every] if every else []
    while waiting:
        some = waiting.pop(0)
        others = list(islice(_calls(caller, base, some), _MOST_CALLS))
        if not others and some is every and len(every) > 1:  # it takes none of all of them at once
            waiting += [[each] for each in every[:_MOST_ALONE]]
        named = ", ".join(dict.fromkeys(f"{names[at]}{path}" for at, path, _ in some))
        for f in (f for other in others for f in _without_what_follows(_frozen(base, other))):
            if f.frame not in drawn and _line(f) not in told:
                told.add(_line(f))
                found.append(replace(f, message=f"{f.message} {OTHER_VALUES}{named})"))
    return found


def _frozen(base: Call, other: Call) -> list[Failure]:
    return [f for f in differences(base.steps, other.steps, random_drawn=False) if f.code in _FROZEN]


def _line(failure: Failure) -> tuple[str, str, int]:
    return (failure.code, *((failure.frame.file, failure.frame.line) if failure.frame is not None else ("", 0)))


def _without_what_follows(moved: list[Failure]) -> list[Failure]:
    """The same without lines that read what one makes of such numbers: ``gru(packed)``."""
    lines = {f.frame for f in moved if DECIDED in f.message}
    made = {(at.file, at.function, name) for at in lines if at is not None for name in _names(at, ast.Store)}

    def follows(failure: Failure) -> bool:
        at = failure.frame
        if at is None or at in lines or failure.code == "scalar-frozen":
            return False
        return any((at.file, at.function, name) in made for name in _names(at, ast.Load))

    return [f for f in moved if not follows(f)]


def _names(frame: Frame, how: type) -> set[str]:
    with suppress(SyntaxError):
        nodes = ast.walk(ast.parse(frame.text.strip()))
        return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, how)}
    return set()


def _calls(caller: Caller, base: Call, some: list[tuple[int, str, Any]]) -> Iterator[Call]:
    """Calls with other values in some of them, each that has returned."""
    for change in _CHANGES:
        changed = {id(each): new for _, _, each in some if (new := _changed(each, change)) is not None}
        if not changed:
            continue
        args = tuple(with_tensors_within(value, changed) for value in caller.args)
        kwargs = {name: with_tensors_within(value, changed) for name, value in caller.kwargs.items()}
        other = caller.call(args, kwargs, drawing=base.number, led=True)
        if other.ended is None:
            yield other


def _is_moved(value: Any) -> bool:
    """Whether it is a plain one of the host's, which no gradient goes to."""
    if type(value) is np.ndarray:
        return 0 < value.size <= _MOST and value.dtype.isnative and value.dtype.name in _KINDS
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.requires_grad:
        return False
    kind = str(value.dtype).removeprefix("torch.")
    return value.device.type == "cpu" and not value.is_nested and 0 < value.numel() <= _MOST and kind in _KINDS


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """One with other values, in memory of its own; None where they are the same."""
    tensor = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value.detach().clone()
    flat = tensor.flatten()
    if tensor.dtype is torch.bool:
        flat = (flat ^ (torch.arange(len(flat)) == len(flat) - 1)) if change is _shorter else _all_others(flat)
    else:
        flat = change(flat if tensor.is_floating_point() else flat.to(torch.int64)).to(tensor.dtype)
    made = flat.view(tensor.shape)
    if torch.equal(made, tensor):
        return None
    if isinstance(value, np.ndarray):
        return made.numpy()
    return made.pin_memory() if value.is_pinned() else made


def _shorter(flat: torch.Tensor) -> torch.Tensor:
    """Lengths, places and offsets: the greatest, and none, stay as they are, so what is sorted stays so."""
    if flat.is_floating_point():
        return flat * 0.75 - 0.0625
    if len(flat) == 1:
        return torch.where(flat > 1, flat - 1, flat)
    first = torch.arange(len(flat)) == flat.argmax()
    return torch.where((flat > 1) & ~first, flat - 1, flat)


def _exchanged(flat: torch.Tensor) -> torch.Tensor:
    """Parts of one whole: one less of the greatest, and one more of the least."""
    if flat.is_floating_point() or len(flat) == 1:
        return flat * 1.25 + 0.0625 if flat.is_floating_point() else flat + 1
    made = flat.clone()
    most, rest = int(flat.argmax()), flat.clone()
    rest[most] = torch.iinfo(flat.dtype).max
    made[most] -= 1
    made[int(rest.argmin())] += 1
    return made


def _all_others(flat: torch.Tensor) -> torch.Tensor:
    """No flag, or all."""
    return torch.full_like(flat, not flat.any())


def _ordered(flat: torch.Tensor) -> torch.Tensor:
    """Another order."""
    return flat.flip(0)


def _longer(flat: torch.Tensor) -> torch.Tensor:
    return flat * 1.5 if flat.is_floating_point() else flat + 1


_CHANGES = (_shorter, _exchanged, _ordered, _longer)
