"""What a call changes that no call before it did, as a patience that is used up: only the next call shows it."""

from __future__ import annotations

from collections.abc import Sequence

from paramgraph_kit.doctor.observe.compare import differences, of_tensors_alone
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.set_between import COUNTED
from paramgraph_kit.trace.model import Failure


def problems(caller: Caller, pair: Sequence[Call], seen: Sequence[Failure]) -> list[Failure]:
    """What the call behind two does otherwise, where the second gave something a value that the first did not."""
    before, base = pair
    if base.random_drawn or not _changed(base) - _changed(before):
        return []
    caller.state.set_to(base.before)
    again, behind = (caller.call(caller.args, caller.kwargs) for _ in range(2))
    if again.ended is not None or behind.ended is not None:
        return []
    return counted(base, behind, seen)


def counted(base: Call, later: Call, seen: Sequence[Failure]) -> list[Failure]:
    """What numbers of the host's decide otherwise in a later call, of lines that have no problem yet."""
    known = [f for f in [*base.found, *seen] if f.code != "host-counter"]
    told, exchanged = {f.frame for f in known}, of_tensors_alone(known)
    found = differences(base.steps, later.steps, random_drawn=False)
    return [f for f in found if f.code in COUNTED and (f.frame not in told or f.frame in exchanged)]


def _changed(call: Call) -> set[tuple[object, ...]]:
    """What a call has given another value, by where that is."""
    entries = (entry for change in call.changes for entry in change.entries())
    return {(each.kind, each.owner, each.name, str(each.key)) for each in entries}
