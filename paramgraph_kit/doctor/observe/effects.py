"""What changes of Python's state mean for a graph, which repeats only what the GPU did."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import is_dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import OF_NUMPY
from paramgraph_kit.doctor.observe.source_lines import written_at
from paramgraph_kit.doctor.restore.holder import Change, is_array
from paramgraph_kit.doctor.restore.host_state import DEEP
from paramgraph_kit.driver.select import driver, twin
from paramgraph_kit.trace.model import Failure, Frame

MOST_PARTS = 64  # of a list, a dictionary or an object that is looked through
_LISTED = 8  # entries of an array that are written out
_FEW = 64  # numbers of a tensor that Python counts in


def changed(earlier: Iterable[Change], later: Iterable[Change], codes: Collection[CodeType]) -> Iterator[Change]:
    """What the later of two calls has changed; and a count that it has begun again, as the earlier has counted it."""
    begun = dict[tuple[str, str, str, Any], tuple[Change, Frame | None]]()
    for change in (entry for each in later for entry in each.entries()):
        yield change
        begun[change.place] = change, written_at(change, codes)
    for change in (entry for each in earlier for entry in each.entries((int,))):
        named = begun.get(change.place)
        if named is None or type(change.after) is not int or type(named[0].after) is not int:
            continue
        at = written_at(change, codes)
        if at is not None and at != named[1]:
            yield change


def effect(change: Change, frame: Frame | None) -> Failure | None:
    """What a change of Python's state means for a graph; None where no line of the user's makes it."""
    if frame is None or change.kind == "iterator":
        return None  # what it gives shows where it is used
    what = f"{change.owner}.{change.name}" if change.owner else change.name
    what += "" if change.key is None else f"[{change.key!r}]"
    if change.kind == "container" and change.key is None and _is_filled_again(change):
        return None  # with what is to be done after the launch, on what the graph has written
    if change.kind == "container" and change.key is None and _replaces_tensors(change):
        return None  # only the latest is kept; where it is read again, it shows as a stale input
    if change.kind == "container" and change.key is None and _keeps_tensor(change):
        rule, text = BY_ID["output-alias"], f"{what} keeps a new tensor at each call"
    elif _is_carried_on_the_host(change, frame):
        rule, text = BY_ID["host-counter"], f"{what} is another tensor on the CPU, made of the one before, in each call"
    elif _is_of_tensors(change.after) or (
        change.kind != "container" and _same_but_tensors(change.before, change.after)
    ):
        return None  # a tensor that is read again shows as a stale input
    else:
        rule = BY_ID["host-counter"]
        text = f"{what} went from {_brief(change.before)} to {_brief(change.after)} in one call"
    return rule.failure(text, frame)


def _is_filled_again(change: Change) -> bool:
    """Whether a list was emptied, and has as many functions, or rows of other tensors, as before."""
    then, now = change.before, change.after
    if not isinstance(now, list) or len(then) != len(now) or {id(each) for each in then} & {id(each) for each in now}:
        return False
    return all(isinstance(new, FunctionType) or _is_row_of(old, new) for old, new in zip(then, now, strict=True))


def _is_row_of(then: Any, now: Any) -> bool:
    """Whether a tuple holds other tensors, and beside them what it held: ``(i, x)``."""
    if not (type(then) is type(now) is tuple) or len(then) != len(now):
        return False
    return all(old is new or _same_but_tensors(old, new) for old, new in zip(then, now, strict=True))


def _replaces_tensors(change: Change) -> bool:
    """Whether a dictionary, or a list, holds other tensors at the same places, and nothing else has changed."""
    then, now = change.by_place()
    if not now or then.keys() != now.keys() or ([*then] != [*now] and not all(map(_is_tensor, now.values()))):
        return False  # `move_to_end` leaves all that it has, and what comes first is another one
    return all(value is then[name] or isinstance(value, torch.Tensor) for name, value in now.items())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_carried_on_the_host(change: Change, frame: Frame) -> bool:
    """Whether a tensor on the CPU is exchanged for one of other numbers that its line makes of it: ``k = k + 1``."""
    then, now = change.before, change.after
    if not (_is_tensor(then) and _is_tensor(now)) or then.device.type != "cpu" or now.device.type != "cpu":
        return False
    made = frame.text.partition("=")[2]
    carried = re.search(rf"(?<![\w]){re.escape(change.name)}\b", made) is not None and now.numel() <= _FEW
    return carried and not torch.equal(then, now)


def _is_of_tensors(value: Any) -> bool:
    """Whether it is a tensor, or a tuple of nothing else."""
    return isinstance(value, torch.Tensor) or (
        isinstance(value, tuple) and bool(value) and all(map(_is_of_tensors, value))
    )


def _same_but_tensors(before: Any, after: Any) -> bool:
    """Whether tensors, events and streams are all that is another in something: nothing of Python's has moved."""
    found = _plain(after, 0)
    return found is not None and found == _plain(before, 0)


def _plain(value: Any, depth: int) -> Any:
    """What of a value is Python's, with the names of kinds for the device's; None for what is not known."""
    cuda = twin()
    kind = type(value)
    if isinstance(value, (torch.Tensor, cuda.Event, cuda.Stream)):
        return ("the device's", "tensor" if isinstance(value, torch.Tensor) else kind.__name__)
    if kind in (int, float, bool, str, bytes, type(None)):
        return (kind.__name__, value)
    if depth > DEEP or len(getattr(value, "__dict__", ())) > MOST_PARTS:
        return None
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        parts: list[Any] = list(value)
    elif kind is dict:
        parts = [*value.keys(), *value.values()]
    elif is_dataclass(kind) and "__dict__" in dir(kind):
        parts = [*vars(value).keys(), *vars(value).values()]
    else:
        return None
    if len(parts) > MOST_PARTS:
        return None
    plain = [_plain(part, depth + 1) for part in parts]
    return None if any(part is None for part in plain) else (kind.__name__, plain)


def _keeps_tensor(change: Change) -> bool:
    """Whether a container has one more of the device's tensors, also in a tuple or a dictionary: a row of a log."""
    device = driver().device.type
    known = {id(part) for part in _parts(change.before)}
    new = [part for part in _parts(change.after) if id(part) not in known]
    inside = [each for part in new for each in (_parts(part) if isinstance(part, (tuple, list, dict)) else (part,))]
    return any(isinstance(each, torch.Tensor) and each.device.type == device for each in inside[:MOST_PARTS])


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def _brief(value: Any) -> str:
    if type(value) in OF_NUMPY:
        return str(value)  # the number itself
    if isinstance(value, (int, float, str, bool)) or value is None:
        return repr(value)[:40]
    if is_array(value) and np.size(value) <= _LISTED:
        return str([*value] if isinstance(value, bytearray) else value.tolist())[:40]
    sized = hasattr(value, "__len__") and not isinstance(value, torch.Tensor)
    return f"{len(value)} entries" if sized else type(value).__name__
