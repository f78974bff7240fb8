"""Calls that end in an error since the one before has used up their arguments: requests that are done by then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.trace.model import Failure


def ended(caller: Caller, first: Call, calls: Iterable[Call]) -> list[Failure]:
    """Why calls did not return; ``first``: the first of all, which may have changed what it was given."""
    found = [call.ended for call in calls if call.ended is not None]
    if not found or first.ended is not None:
        return found
    apart = {id(holder.target) for holder in HostState(caller.function, (), {}).holders}
    own = [holder for holder in caller.state.holders if holder.kind in ("container", "attributes", "slots")]
    pairs = zip(caller.state.holders, caller.state.kept, strict=True)
    moved = {id(holder.target): holder.name for holder, then in pairs if not holder.is_same(then)}
    names = dict.fromkeys(moved[id(h.target)] for h in own if id(h.target) in moved.keys() - apart)
    if not names:
        return found
    listed = ", ".join(f"`{name}`" for name in names if name)
    called = getattr(caller.function, "__name__", "step")
    words = f"the first call has changed its arguments ({listed}), and this one was given the same again"
    after = f"pgk.diagnose(lambda: {called}(make_args())), with what makes them anew: not all of it was looked at"
    fix = f"before  pgk.diagnose({called}, ...)\nafter   {after}"
    return [replace(f, message=f"{f.message}; {words}", fix=fix) for f in found]
