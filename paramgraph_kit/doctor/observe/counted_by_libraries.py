"""What a module of a library's counts by itself, and does in some calls only: ``if self.updates % 10 == 0: ...``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.set_between import COUNTED
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.trace.model import Failure

_MOST = 10  # calls that are made for it: often it is each tenth


def counted_by_libraries(
    state: HostState, base: Call, seen: Sequence[Failure], again: Callable[[], Call]
) -> list[Failure]:
    """What differs in one of some more calls; none are made where no such module counts."""
    if base.random_drawn or state.library_counts() == state.first_counts:
        return []
    told = {f.frame for f in (*base.found, *seen)}
    for _ in range(_MOST):
        before, other = state.library_counts(), again()
        if other.ended is not None:
            break
        found = differences(base.steps, other.steps, random_drawn=False)
        if found := [f for f in found if f.code in COUNTED and f.frame not in told]:
            return found
        if state.library_counts() == before:  # it was set once, as a length that a table has now
            break
    return []
