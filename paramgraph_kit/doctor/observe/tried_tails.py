"""Whether what a call makes depends on what a shorter input leaves: tried with other numbers there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.padded_places import index_writes, padded_places
from paramgraph_kit.doctor.observe.result_numbers import numbers_of
from paramgraph_kit.doctor.observe.shorter_inputs import with_one_less
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.one_call import Call, Caller

Full = dict[tuple[str, int], tuple[ast.Subscript, set[int]]]
_LARGER = 3.0
_MOST_SIZES = 3  # that are tried
_MOST_LINES = 6  # that are tried each by itself
_TRIED = " (today's fills it; tried with one that is a row shorter)"
_NOT_SHORTER = (
    "what a shorter one finds behind its own was not tried; diagnose it with one that is a row shorter, and has the "
    "same graph"
)


def tried(caller: Caller, call: Call, told: list[Failure], notes: list[str]) -> list[Failure]:
    """What a shorter input leaves of a longer one, if what comes of a call depends on that: else nothing is told.

    Args:
        caller: who calls the function.
        call: whose random numbers are drawn.
        told: what the lines alone tell of it.
        notes: of the examination, where what could not be tried is said.
    """
    tails, number = caller.graphs.tails, call.number
    full = {at: each for at, each in tails.full.items() if at not in tails.found}
    places = [*padded_places(caller, number)]
    if not tails.found:
        return [*told, *places] or _of_shorter(caller, number, full, notes)

    def made(times: float) -> list[torch.Tensor] | None:
        return _made_with(caller, number, times)

    try:
        depends = _depends(made)
        if depends is False and full:
            return places or _of_shorter(caller, number, full, notes)
        told = told if depends is None else (told or _that_count(caller, made)) if depends else []
    finally:
        tails.changes = 0.0
    known = {f.frame for f in places}  # zeros there are the first place
    return [*(f for f in told if f.frame not in known), *places]


def _of_shorter(caller: Caller, number: int, full: Full, notes: list[str]) -> list[Failure]:
    """The same of an input that fills what it is given today: tried with one that is shorter, in each of its sizes."""
    graphs, args, kwargs = caller.graphs, caller.args, caller.kwargs
    regions, misread, known = [*(graphs.regions or ())], [*graphs.misread], {**graphs.known}
    told, tried_all = dict[Frame | None, Failure](), True
    stays = graphs.memory()
    for size in sorted({size for _, some in full.values() for size in some})[:_MOST_SIZES]:
        less = tuple(with_one_less(value, size, stays) for value in args)
        named = {name: with_one_less(value, size, stays) for name, value in kwargs.items()}
        graphs.tails.found, caller.args, caller.kwargs = {}, less, named
        try:
            is_same = all(a is b for a, b in zip((*less, *named.values()), (*args, *kwargs.values()), strict=True))
            found = None if is_same else _tried_shorter(caller, number)
        finally:
            caller.args, caller.kwargs, graphs.tails.changes = args, kwargs, 0.0
            graphs.regions, graphs.misread, graphs.known = [*regions], [*misread], {**known}
        tried_all = tried_all and found is not None
        told = {f.frame: f for f in found or ()} | told
    if not told and not tried_all:
        parts = ", ".join(dict.fromkeys(ast.unparse(cut) for cut, _ in full.values()))
        notes.append(f"today's input fills all of {parts}: {_NOT_SHORTER}")
    return [*told.values()]


def _tried_shorter(caller: Caller, number: int) -> list[Failure] | None:
    """What depends on what is behind such an input; None where nobody knows."""
    tails = caller.graphs.tails
    if _made_with(caller, number, 0.0) is None or not tails.found:
        return [] if tails.captured else None
    if tails.captured:  # it has a graph of its own, which this one replays
        return []
    places = [*padded_places(caller, number)]

    def made(times: float) -> list[torch.Tensor] | None:
        return _made_with(caller, number, times)

    if (depends := _depends(made)) is None:
        return places or None
    known = {f.frame for f in places}
    lines = _that_count(caller, made) if depends else []
    told = [replace(f, message=f.message + _TRIED) for f in lines if f.frame not in known]
    return [*told, *places] if depends else places


def tried_in_program(caller: Caller, told: list[Failure], notes: list[str]) -> list[Failure]:
    """The same of a program that captures by itself, whose replays were seen: what is told more; or noted, untried."""
    graphs = caller.graphs
    if not graphs.tails.found or any(f.code == "size-frozen" for f in told):
        return []  # a line that uses the other rows is told already
    regions, misread = graphs.regions, graphs.misread
    number = caller.number  # all draw the same

    def made(times: float) -> list[torch.Tensor] | None:
        graphs.regions, graphs.misread = [], []
        return _made_with(caller, number, times, plainly=True)

    try:
        graphs.tails.watches = True
        graphs.tails.kept_as_read = any(f.code == "output-alias" for f in told)
        depends = _depends(made)
        lines = _that_count(caller, made) if depends else []
    finally:
        graphs.regions, graphs.misread, graphs.tails.changes, graphs.tails.watches = regions, misread, 0.0, False
        graphs.tails.kept_as_read = False
    if depends is None:
        notes += [_untried(failure) for failure in graphs.tails.failures()]
    if not depends:
        return []
    frozen = {f.message.partition(" is ")[0] for f in told if f.code == "scalar-frozen"}
    return [f for f in lines if frozen.isdisjoint(re.findall(r"[\w.]+", f.message))]  # once each


def _untried(failure: Failure) -> str:
    """What is not known of a line that fills the first part, where no call with other numbers came to its end."""
    said = failure.message.removeprefix("the replay also reads ")
    label = failure.frame.label() if failure.frame is not None else "a line"
    more = "with more time, `limit_s=120`, it is, or where all calls give the same"
    return f"{label}: whether results depend on {said} was not tried: {more}"


def _depends(made: Callable[[float], list[torch.Tensor] | None]) -> bool | None:
    """Whether what a call makes is another where other numbers are left there; None where nobody knows.

    Rows that the input has, too, change no maximum: then larger ones are tried.
    """
    plain, again = made(0.0), made(0.0)
    if plain is None or again is None or not _is_alike(plain, again):
        return None
    if (other := made(1.0)) is None:
        return None
    return not _is_alike(plain, other) or ((larger := made(_LARGER)) is not None and not _is_alike(plain, larger))


def _that_count(caller: Caller, made: Callable[[float], list[torch.Tensor] | None]) -> list[Failure]:
    """The lines without which the result is another, of several; all where no one is such."""
    tails = caller.graphs.tails
    found, counted = dict(tails.found), list[tuple[str, int]]()
    try:
        for times in (1.0, _LARGER) if 1 < len(found) <= _MOST_LINES else ():
            rest = [each for each in found if each not in counted]
            every = made(times) if rest else None
            for line in rest:
                tails.only = [each for each in found if each != line]
                without = made(times)
                counted += [line] if every is None or without is None or not _is_alike(every, without) else []
            tails.only = ()
    finally:
        tails.only, tails.found = (), {at: found[at] for at in found if at in counted or not counted}
    return [*tails.failures()]


def _made_with(caller: Caller, number: int, times: float, *, plainly: bool = False) -> list[torch.Tensor] | None:
    caller.graphs.tails.changes = times
    return _made(caller, number, plainly=plainly)


def _made(caller: Caller, number: int, *, plainly: bool = False) -> list[torch.Tensor] | None:
    """What a call returns, and the weights that it leaves; None where it fails."""
    function, found, tails = caller.function, list[torch.Tensor](), caller.graphs.tails
    tails.begin_reads(caller.graphs.writes)

    def kept(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        regions = [r for r in caller.graphs.regions or () if r.values is not None]
        read = [t for r in regions if r.values is not None for t in r.values.read()]
        weights = [t for t in (*caller.state.tensors, *read) if isinstance(t, torch.nn.Parameter)]
        numbers = [] if tails.kept_as_read else numbers_of(result)
        found.extend(numbers or tails.read)
        found.extend(t.detach().cpu().clone() for t in [*weights, *_sums(caller, regions, read)])
        return result

    caller.function = kept
    try:
        call = caller.call(caller.args, caller.kwargs, drawing=number, plainly=plainly)
    finally:
        caller.function, tails.writes = function, None
    tails.captured = call.captures
    return found if call.ended is None else None


def _sums(caller: Caller, regions: list[Region], read: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """States that graphs go on from, and that are no rows: those of a row that is not there may be nobody's."""
    moved = {key for r in regions for key in (*r.writes, *caller.graphs.flow.moved(r.graph))}
    placed = [write.state for write in index_writes(regions)]  # rows to spare are told apart there
    moved -= {storage_key(each) for each in placed if each is not None}
    states = {key: t for t in (*read, *caller.state.tensors) if (key := storage_key(t)) in moved}
    for tensor in states.values():
        is_rows = not caller.graphs.tails.rows.isdisjoint(tensor.shape)
        if not isinstance(tensor, torch.nn.Parameter) and not is_rows and (None not in placed or tensor.numel() == 1):
            yield tensor


def _is_alike(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    pairs = zip(some, others, strict=False)
    same = (a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    return len(some) == len(others) and all(same)
