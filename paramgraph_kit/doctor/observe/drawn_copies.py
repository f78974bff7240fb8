"""Numbers that the host draws and copies to the device: that the copy waits is half of it, as a graph has its first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.observe.chance import DRAWN, draws_in
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.places import frame_of
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

COPIES = ("copy-to-gpu", "tensor-literal", "cpu-index", "scalar-assignment")
SAYS = DRAWN


def lines(first: Iterable[Step], second: Iterable[Step]) -> set[Frame | None]:
    """Lines that have copied something else in the second call."""
    found = [_copied(first), _copied(second)]
    return {at for at, sums in found[0].items() if len(found[1].get(at, ())) == len(sums) and found[1][at] != sums}


def _copied(steps: Iterable[Step]) -> dict[Frame | None, list[int]]:
    found: dict[Frame | None, list[int]] = {}
    for step in steps:
        if step.copied:
            found.setdefault(frame_of(step.place.user), []).append(step.copied)
    return found


def tell(caller: Caller, call: Call, others: Iterable[list[Step]]) -> None:
    """Say so of the copies of a call that are others with other numbers drawn, and the same where the same are."""
    copies = {f.frame for f in call.found if f.code in COPIES}
    drawn = copies & {at for other in others for at in lines(call.steps, other)}
    if drawn:
        same = caller.call(caller.args, caller.kwargs, drawing=call.number)
        drawn = drawn - lines(call.steps, same.steps) if same.ended is None else set()
    if copies > drawn:  # perhaps what moves with the calls, as how many it copies, lets none of these be compared
        other, same = _begun_as(caller, call), _begun_as(caller, call, drawing=call.number)
        if same.ended is None:
            drawn |= copies & lines(call.steps, other.steps) - lines(call.steps, same.steps)
    call.found[:] = told(call.found, drawn)


def _begun_as(caller: Caller, call: Call, drawing: int = 0) -> Call:
    """One call more, from what Python held ahead of an earlier one; behind it that is as before."""
    held = caller.state.read()
    caller.state.set_to(call.before)
    try:
        return caller.call(caller.args, caller.kwargs, drawing=drawing)
    finally:
        caller.state.set_to(held)


def told(found: Collection[Failure], drawn: Collection[Frame | None]) -> list[Failure]:
    """The same problems, with what is known of copies of what is drawn."""
    new = {id(f) for f in found if f.code in COPIES and f.frame in drawn and SAYS not in f.message}
    return [replace(f, message=f"{f.message}; {SAYS}") if id(f) in new else f for f in found]


def where_drawn(first: Call, second: Call, codes: Iterable[CodeType]) -> set[Frame | None]:
    """Lines that copied something else in the second call, in functions whose source draws."""
    drawing = {(display_name(code.co_filename), code.co_name) for code in codes if draws_in(code)}
    return {at for at in lines(first.steps, second.steps) if at and (at.file, at.function) in drawing}
