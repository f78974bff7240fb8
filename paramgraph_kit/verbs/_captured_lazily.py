"""A function that has captured in an earlier call is asked as before that, too: what its capture was given is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paramgraph_kit.verbs._own_captures import head_of, headed

if TYPE_CHECKING:
    from paramgraph_kit.doctor.diagnosis import Diagnosis

_FAILS = "raises"
_NOT_LOOKED_AT = "no problems around its replays, and its capture was not looked at"


def asked_as_first(
    diagnose: Callable[..., Diagnosis],
    found: Diagnosis,
    what: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limit_s: float,
    fix: bool,
) -> Diagnosis:
    """What is found where a part of it was not looked at; as before its captures, where these are made when asked."""
    from paramgraph_kit.doctor.observe.captured_lazily import as_before_captures
    from paramgraph_kit.doctor.observe.examine import NOT_ASKED
    from paramgraph_kit.doctor.observe.given_captured import UNREAD

    if NOT_ASKED not in found.notes:
        return found
    with as_before_captures(what, [*args, *kwargs.values()]) as is_lazy:
        again = diagnose(what, args, kwargs, limit_s, False, fix) if is_lazy else None
    # Who fails without its graphs has not captured them where it asks: nothing of that call counts.
    fails = again is not None and any(f.code == _FAILS for f in again.failures)
    if again is not None and not fails and NOT_ASKED not in again.notes and not again.state:
        # What arguments only a capture has read is judged by the graphs that are there: a caller may fill them.
        own = [f for f in again.failures if UNREAD not in f.message]
        lines = {(f.code, f.frame) for f in own}
        again.failures = (*own, *(f for f in found.failures if (f.code, f.frame) not in lines))
        again.heading = headed(*head_of(again))
        return again
    name, failures, where = head_of(found)
    if not failures and not found.state:
        found.heading = f"{name}: {_NOT_LOOKED_AT} ({where})"
    return found
