"""Saved activations without tensor objects: the forward's launch returns the shelf that they lie on, the backward's
takes it.

Small activations share one allocation, the shelf; a step of many layers has hundreds of them. Only where a launch
cannot take it after all are the tensors made that the ordinary launcher wants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.backend.direct.recipe import Given, Made, Origin, Recipe, View, assembler, view_of
from paramgraph_kit.capture.pair import Kind, alignment_of
from paramgraph_kit.launch.generate import Form
from paramgraph_kit.launch.launcher import Variant
from paramgraph_kit.launch.plan import Shelf


class _Missed:
    """What a launch or a frozen function returns for a call that it was not made for."""


MISSED = _Missed()
Launch = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Located:
    """The launches of a step, and the tensors on the shelf between them."""

    forward: Launch  # returns its outputs, None for those on the shelf, and then the shelf
    take: Callable[[Sequence[Any], Sequence[Any]], list[Any]]  # the backward's inputs, but for those on the shelf
    backward: Launch  # takes these, and then the shelf
    views: dict[int, tuple[torch.dtype, View]]  # by position in the backward's inputs: where it lies on the shelf

    def restored(self, taken: list[Any]) -> list[Any]:
        """All of the backward's inputs as tensors, from what ``backward`` would not take."""
        *given, shelf = taken
        rest, count = iter(given), len(given) + len(self.views)
        views = {position: view_of(shelf.view(dtype), view) for position, (dtype, view) in self.views.items()}
        return [views[k] if k in views else next(rest) for k in range(count)]


def locate(
    forward: Recipe, backward: Recipe, saved: Sequence[Made | Given], passed_on: frozenset[int], results: int
) -> Located | None:
    """The launches for a step whose launchers have settled; None where they have not, or nothing is on the shelf."""
    first, second = forward.launcher.settled(), backward.launcher.settled()
    if first is None or second is None:
        return None
    takes = [(n, each) for n, each in enumerate(backward.takes) if isinstance(each, Given)]
    once = Counter(given.index for _, given in takes)
    taken = {given.index: n for n, given in takes if given.view is None and once[given.index] == 1}
    viewed = {given.index for _, given in takes if given.view is not None} | passed_on
    # What the backward gives back lies in memory of these: it takes the tensor, not only its address.
    returned = {o.source for o in second.captured.outputs if o.kind in (Kind.INPUT, Kind.ARGUMENT)}
    others = [origin for origin in forward.gives[:results] if isinstance(origin, Made)]
    places: dict[int, int] = {}
    for place, origin in enumerate(saved):
        if taken.get(place, -1) in {-1} | returned or place in viewed:
            continue
        if _alone(origin, saved, others) and _on_shelf(first, origin.index, second, taken.get(place)):
            places[place] = origin.index
    if not places:
        return None
    views = {taken[place]: _view(first, index) for place, index in places.items()}
    there = forward.launcher.launch_as(Form(located=frozenset(places.values())), first, lambda _: MISSED)
    shelved = {position: _byte(first, places[place]) for place, position in taken.items() if place in places}
    back = backward.launcher.launch_as(Form(shelved=shelved), second, lambda _: MISSED)
    rest = assembler([each for n, each in enumerate(backward.takes) if n not in views])
    return Located(there, rest, back, views)


def _alone(origin: Origin, saved: Sequence[Origin], results: Sequence[Made]) -> bool:
    """Whether an output of the launch is saved as it is, once, and nobody else has it."""
    if not isinstance(origin, Made) or origin.view is not None:
        return False
    same = [each for each in (*saved, *results) if isinstance(each, Made) and each.index == origin.index]
    return len(same) == 1


def _on_shelf(variant: Variant, index: int, taker: Variant, position: int | None) -> bool:
    """Whether an output lies on the shelf, aligned as the other launch was captured with."""
    output = variant.captured.outputs[index]
    if output.kind is not Kind.FRESH or output.source < 0 or any(output.bits):
        return False
    if not isinstance(variant.plan.placements[output.source].slot, Shelf):
        return False
    spec = taker.captured.specs[position] if position is not None else None
    return spec is None or alignment_of(_byte(variant, index)) == spec.alignment


def _byte(variant: Variant, index: int) -> int:
    """Where on the shelf an output lies."""
    output = variant.captured.outputs[index]
    return variant.plan.placements[output.source].offset + output.offset


def _view(variant: Variant, index: int) -> tuple[torch.dtype, View]:
    output = variant.captured.outputs[index]
    assert output.dtype is not None
    return output.dtype, View(output.size, output.stride, _byte(variant, index) // output.dtype.itemsize)
