"""A runner that counts its calls, and captures once some have warmed up: what comes ahead of that is none of a step."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.ended_ahead import FUNCTION
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.driver.files import is_library

MOST_AHEAD = 9  # calls that have warmed up ahead of a capture
MOST_READIED = 2  # where no number counts them: what the first ones make is there then
MOST_FURTHER = 4  # calls that capture one more graph of a table
_CAPTURES = ("graph", "capture_begin", "make_graphed_callables")


def captures_late(caller: Caller, codes: Sequence[CodeType], made: Sequence[Call]) -> Call | None:
    """The call that captures, also in vain, where a runner counts its calls ahead of that; None where none does."""
    quiet = all(not call.captures and not call.replays and call.ended is None for call in made)
    if not quiet or not any(call.changes for call in made) or not _may_capture(codes):
        return None
    counts = any(_counts(change.after) for change in made[-1].changes)
    for call in (caller.call(caller.args, caller.kwargs) for _ in range(MOST_AHEAD if counts else MOST_READIED)):
        if call.captures or call.ended is not None:
            return call if call.captures else None
    return None


def settled(caller: Caller, before: Call, call: Call) -> Call:
    """A call, or one behind it that only replays, where that captures one more graph of a table: ``graphs[n > 3]``.

    ``before``: the call ahead of it, which is given back where it only replays and none of the next ones does.
    """
    if not (replays_alone(before) and call.captures and call.replays):
        return call
    for _ in range(MOST_FURTHER):
        if call.ended is not None or replays_alone(call):
            return call
        call = caller.call(caller.args, caller.kwargs)
    return call if call.ended is not None or replays_alone(call) else before


def behind_both(caller: Caller, first: Call, second: Call) -> Call | None:
    """A call behind two that both capture and replay, each for a key of its own perhaps; None behind others."""
    both = first.captures and second.captures and second.replays
    return caller.call(caller.args, caller.kwargs) if both else None


def replays_alone(call: Call) -> bool:
    """Whether a call replays a graph that the function has captured before: it is no work for another capture.

    Or in this call, which an error of its own has ended behind that.
    """
    is_over = call.ended is not None and BY_ID[call.ended.code].category == FUNCTION
    return bool(call.replays) and (is_over or not call.captures)


def _may_capture(codes: Sequence[CodeType]) -> bool:
    """Whether a file of what calls run captures."""
    trees = map(tree_of, sorted({code.co_filename for code in codes if not is_library(code.co_filename)}))
    calls = (n for tree in trees if tree is not None for n in ast.walk(tree) if isinstance(n, ast.Call))
    return any(last_name(call.func) in _CAPTURES for call in calls)


def _counts(value: Any) -> bool:
    entries = value.values() if type(value) is dict else [value]
    return any(isinstance(each, int) for each in entries)
