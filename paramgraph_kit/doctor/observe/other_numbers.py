"""Calls with other numbers than the user's, as arguments and in outer variables: what they decide is frozen."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.examination import Examination
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.settings_given import with_others
from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.trace.model import Failure, Frame

OTHER_NUMBERS = "(tried other numbers for "  # what a message has where another argument decides
TAKES_NO_OTHERS = "with other numbers as arguments it fails, so what they decide could not be seen"


def another(value: Any) -> Any:
    """Another number of the same kind, close by; anything else as it is."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind is int:
        return value + 1
    return value * 1.25 + 0.0625 if kind is float else value


def _others(caller: Caller) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function, with other numbers."""
    return tuple(map(another, caller.args)), {name: another(value) for name, value in caller.kwargs.items()}


def _with_objects(caller: Caller, kinds: tuple[type, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function, with other numbers also in the objects and dictionaries among them."""

    def moved(value: Any) -> Any:
        return another(value) if type(value) in kinds else with_others(value, kinds, another)

    return tuple(map(moved, caller.args)), {name: moved(value) for name, value in caller.kwargs.items()}


def call_with_others(caller: Caller) -> None:
    """Call a function that replays once more with other numbers: what they set is seen at its replays."""
    for args, kwargs in (_others(caller), _with_objects(caller, (bool, int, float)), _with_objects(caller, (float,))):
        given = zip((*args, *kwargs.values()), (*caller.args, *caller.kwargs.values()), strict=True)
        if all(a is b for a, b in given):
            continue
        held = [(r.values, dict(r.values.moved)) for r in caller.graphs.regions or () if r.values is not None]
        if caller.call(args, kwargs).ended is not None:  # it takes no others
            for values, moved in held:
                values.moved = moved


def is_key(caller: Caller, name: str) -> bool:
    """Whether a function captures again where it is given another number by a name: its table of graphs has that."""
    try:
        bound = inspect.signature(caller.function).bind(*caller.args, **caller.kwargs)
    except (TypeError, ValueError):
        return False
    number = bound.arguments[name]
    for _ in range(2):  # a call with others may have captured for the first of them
        bound.arguments[name] = number = another(number)
        call = caller.call(bound.args, bound.kwargs)
        if call.captures and call.ended is None:
            return True
    return False


def frozen_arguments(caller: Caller, base: Call, seen: list[Failure], found: Examination) -> list[Failure]:
    """Call once more with other numbers as arguments: what they decide is frozen."""
    args, kwargs = _others(caller)
    changed = [(i, a, b) for i, (a, b) in enumerate(zip(caller.args, args, strict=True)) if a is not b]
    named = [(name, caller.kwargs[name], kwargs[name]) for name in kwargs if kwargs[name] is not caller.kwargs[name]]
    if not changed and not named:
        return []
    other = caller.call(args, kwargs, drawing=base.number)  # what the host draws stays, beside what is given
    if other.ended is not None:
        found.notes.append(TAKES_NO_OTHERS)
        return []
    names = ", ".join([f"argument {i + 1} = {a}" for i, a, _ in changed] + [f"{n} = {a}" for n, a, _ in named])
    drawn = {f.frame for f in seen if f.code == "host-random"}  # by what cannot be made to draw the same
    frozen = differences(base.steps, other.steps, random_drawn=False)
    return [
        replace(f, message=f"{f.message} {OTHER_NUMBERS}{names})")
        for f in frozen
        if f.code != "stale-input" and f.frame not in drawn
    ]


def frozen_names(caller: Caller, found: Examination, base: Call, told: set[tuple[str, Frame | None]]) -> None:
    """Call once more with other numbers in outer variables: candidates for parameters, where nothing is told."""
    if not (numbers := caller.state.numbers()):
        return
    held: list[tuple[Holder, Any]] = [(holder, holder.read()) for holder, _ in numbers]
    for holder, value in ((h, v) for h, v in held if isinstance(v, (int, float)) and not isinstance(v, bool)):
        holder.write(another(value))
    try:
        other = caller.call(caller.args, caller.kwargs)
    finally:
        for holder, value in held:
            holder.write(value)
    if other.ended is not None:
        return
    for failure in differences(base.steps, other.steps, random_drawn=True):
        if failure.code in ("scalar-frozen", "size-frozen", "cpu-scalar-frozen", "branch-frozen") and failure.frame:
            named = [h.name for h, _ in numbers if re.search(rf"\b{re.escape(h.name)}\b", failure.frame.text)]
            names = named or [h.name for h, _ in numbers if (failure.code, failure.frame) not in told]
            what = "decides a branch" if failure.code == "branch-frozen" else "would be frozen"
            text = f"{', '.join(names)} {what} at {failure.frame.label()}"
            found.notes += [f"candidate for a parameter: {text}"] if names else []
