"""Whether what a call makes depends on what a shorter input leaves: tried with other numbers there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.padded_places import index_writes, padded_places
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.one_call import Caller

_LARGER = 3.0


def tried(caller: Caller, number: int, told: list[Failure]) -> list[Failure]:
    """What a shorter input leaves of a longer one, if what comes of a call depends on that: else nothing is told.

    Args:
        caller: who calls the function.
        number: of the call whose random numbers are drawn.
        told: what the lines alone tell of it.
    """
    tails = caller.graphs.tails
    places = [*padded_places(caller, number)]
    if not tails.found:
        return [*told, *places]
    try:
        depends = _depends(lambda times: _made_with(caller, number, times))
    finally:
        tails.changes = 0.0
    told = told if depends is None else (told or [*tails.failures()]) if depends else []
    known = {f.frame for f in places}  # zeros there are the first place
    return [*(f for f in told if f.frame not in known), *places]


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
        depends = _depends(made)
    finally:
        graphs.regions, graphs.misread, graphs.tails.changes, graphs.tails.watches = regions, misread, 0.0, False
    if depends is None:
        notes += [_untried(failure) for failure in graphs.tails.failures()]
    if not depends:
        return []
    frozen = {f.message.partition(" is ")[0] for f in told if f.code == "scalar-frozen"}
    return [f for f in graphs.tails.failures() if frozen.isdisjoint(re.findall(r"[\w.]+", f.message))]  # once each


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


def _made_with(caller: Caller, number: int, times: float, *, plainly: bool = False) -> list[torch.Tensor] | None:
    caller.graphs.tails.changes = times
    return _made(caller, number, plainly=plainly)


def _made(caller: Caller, number: int, *, plainly: bool = False) -> list[torch.Tensor] | None:
    """What a call returns, and the weights that it leaves; None where it fails."""
    function, found = caller.function, list[torch.Tensor]()

    def kept(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        regions = [r for r in caller.graphs.regions or () if r.values is not None]
        read = [t for r in regions if r.values is not None for t in r.values.read()]
        weights = [t for t in (*caller.state.tensors, *read) if isinstance(t, torch.nn.Parameter)]
        found.extend(t.detach().cpu().clone() for t in [*tensors_in(result), *weights, *_sums(caller, regions, read)])
        return result

    caller.function = kept
    try:
        call = caller.call(caller.args, caller.kwargs, drawing=number, plainly=plainly)
    finally:
        caller.function = function
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
