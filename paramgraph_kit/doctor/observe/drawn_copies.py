"""Numbers that the host draws and copies to the device: that the copy waits is half of it, as a graph has its first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import CodeType

from paramgraph_kit.doctor.observe.chance import draws_in
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.places import frame_of
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

COPIES = ("copy-to-gpu", "tensor-literal", "cpu-index", "scalar-assignment")
SAYS = "it is drawn on the host, and replays keep the first numbers"


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


def tell(call: Call, others: Iterable[list[Step]], again: Callable[[], Call]) -> None:
    """Say so of the copies of a call that are others with other numbers drawn, and the same where the same are."""
    found = {at for other in others for at in lines(call.steps, other)}
    if not any(f.code in COPIES and f.frame in found for f in call.found):
        return
    same = again()
    if same.ended is None:
        call.found[:] = told(call.found, found - lines(call.steps, same.steps))


def told(found: Iterable[Failure], drawn: Collection[Frame | None]) -> list[Failure]:
    """The same problems, with what is known of copies of what is drawn."""
    return [replace(f, message=f"{f.message}; {SAYS}") if f.code in COPIES and f.frame in drawn else f for f in found]


def where_drawn(first: Call, second: Call, codes: Iterable[CodeType]) -> set[Frame | None]:
    """Lines that copied something else in the second call, in functions whose source draws."""
    drawing = {(display_name(code.co_filename), code.co_name) for code in codes if draws_in(code)}
    return {at for at in lines(first.steps, second.steps) if at and (at.file, at.function) in drawing}
