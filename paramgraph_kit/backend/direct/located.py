"""A step's two launches without tensor objects that nobody needs.

Small activations share one allocation, the shelf; a step of many layers has hundreds of them. The forward's launch
returns the shelf, the backward's takes it, and only where a launch cannot are the tensors made that the ordinary
launcher wants. A result or gradient that is a view of what a launch makes is made as that view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramgraph_kit.backend.direct.recipe import Given, Made, Origin, Recipe, View, assembler, view_of
from paramgraph_kit.capture.pair import Kind
from paramgraph_kit.launch.generate import Form
from paramgraph_kit.launch.launcher import Variant
from paramgraph_kit.launch.plan import Shelf


class _Missed:
    """What a launch or a frozen function returns for a call that it was not made for."""


MISSED = _Missed()
Launch = Callable[[list[Any]], Any]
Assemble = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Located:
    """The launches of a step, and the tensors on the shelf between them."""

    forward: Launch  # returns its outputs, None for those on the shelf, and then the shelf, if there is one
    results: Assemble  # the caller's, of what the forward has made
    save: Assemble  # what the backward reads, None for what is on the shelf
    take: Assemble  # the backward's inputs, but for those on the shelf
    backward: Launch  # takes these, and then the shelf, if there is one
    gradients: Assemble  # of what the backward has made
    views: dict[int, tuple[torch.dtype, View]]  # by position in the backward's inputs: where it lies on the shelf
    looks: dict[int, View]  # the same of inputs that are given whole: what the backward wants to see of them

    def restored(self, taken: list[Any]) -> list[Any]:
        """All of the backward's inputs as tensors, from what ``backward`` would not take."""
        *given, shelf = taken if self.views else (*taken, None)
        rest, count = iter(given), len(given) + len(self.views)
        views = {position: view_of(shelf.view(dtype), view) for position, (dtype, view) in self.views.items()}
        whole = [views[k] if k in views else next(rest) for k in range(count)]
        return [view_of(each, self.looks[k]) if k in self.looks else each for k, each in enumerate(whole)]


class Locating:
    """The launches of a step by what its launchers have settled on: inputs may come aligned in several ways."""

    def __init__(self, locate: Callable[[Variant, Variant], Located]) -> None:
        self._locate = locate
        # The variants are held, so that no other one has their identity.
        self._known: dict[tuple[int, int], tuple[Variant, Variant, Located]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, forward: Recipe, backward: Recipe) -> Located | None:
        """What launches them now; None where one of their launchers has not settled."""
        first, second = forward.launcher.settled(), backward.launcher.settled()
        if first is None or second is None:
            self._known.clear()
            return None
        key = id(first), id(second)
        if key not in self._known:
            self._known[key] = first, second, self._locate(first, second)
        return self._known[key][2]


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes where in a step, whichever variants launch it."""

    forward: Recipe
    backward: Recipe
    results: tuple[Origin, ...]  # the caller's
    saved: tuple[Made | Given, ...]
    gradients: tuple[Origin, ...]  # of the inputs that get one
    passed_on: frozenset[int]  # the backward's inputs that are gradients, or have them as views

    def located(self, first: Variant, second: Variant) -> Located:
        """The launches of the step by these two."""
        takes = [(n, each) for n, each in enumerate(self.backward.takes) if isinstance(each, Given)]
        once = Counter(given.index for _, given in takes)
        taken = {given.index: n for n, given in takes if given.view is None and once[given.index] == 1}
        viewed = {given.index for _, given in takes if given.view is not None} | self.passed_on
        # What the backward gives back lies in memory of these: it takes the tensor, not only its address.
        returned = {o.source for o in second.captured.outputs if o.kind in (Kind.INPUT, Kind.ARGUMENT)}
        given_out = (*self.results, *self.saved)
        seen = _seen(given_out, first)
        counts = Counter(each.index for each in given_out if isinstance(each, Made))
        places: dict[int, Made] = {}
        looks: dict[int, View] = {}
        saved: list[Origin] = list(self.saved)
        for place, origin in enumerate(self.saved):
            if taken.get(place, -1) in {-1} | returned or place in viewed:
                continue
            if isinstance(origin, Given):  # a parameter transposed, mostly: the launch wants nothing but its address
                if origin.view is not None and origin.view.offset == 0:
                    looks[taken[place]], saved[place] = origin.view, replace(origin, view=None)
            elif counts[origin.index] == 1 and _on_shelf(first, origin, second, taken[place]):
                places[place] = origin
        views = {taken[place]: _view(first, origin) for place, origin in places.items()}
        shelved = {position: _byte(first, places[place]) for place, position in taken.items() if place in places}
        gradients = _seen(self.gradients, second)
        coming = Form(shelved=shelved, seen=gradients, unasked=frozenset(looks))
        leaving = Form(located=frozenset(each.index for each in places.values()), seen=seen)
        return Located(
            self.forward.launcher.launch_as(leaving, first, lambda _: MISSED),
            assembler(_as_made(self.results, seen)),
            assembler(_as_made(saved, seen)),
            assembler([each for n, each in enumerate(self.backward.takes) if n not in views]),
            self.backward.launcher.launch_as(coming, second, lambda _: MISSED),
            assembler(_as_made(self.gradients, gradients)),
            views,
            looks,
        )


def _seen(given: Sequence[Origin], variant: Variant) -> dict[int, tuple[tuple[int, ...], tuple[int, ...], int]]:
    """The outputs of a launch of which nothing but one view is given to anybody, and that view."""
    made = [each for each in given if isinstance(each, Made)]
    counts = Counter(each.index for each in made)
    return {
        each.index: (each.view.size, each.view.stride, each.view.offset)
        for each in made
        if each.view is not None and counts[each.index] == 1 and _plain(variant, each.index)
    }


def _plain(variant: Variant, index: int) -> bool:
    """Whether an output is memory of its own that a launch makes, and its values are what lies there."""
    output = variant.captured.outputs[index]
    return output.kind is Kind.FRESH and output.source >= 0 and not any(output.bits)


def _as_made(origins: Iterable[Origin], seen: Iterable[int]) -> list[Origin]:
    known = set(seen)
    return [replace(o, view=None) if isinstance(o, Made) and o.index in known else o for o in origins]


def _on_shelf(variant: Variant, origin: Made, taker: Variant, position: int) -> bool:
    """Whether an output lies on the shelf, aligned as the other launch was captured with."""
    if not _plain(variant, origin.index):
        return False
    if not isinstance(variant.plan.placements[variant.captured.outputs[origin.index].source].slot, Shelf):
        return False
    return taker.captured.takes(position, _byte(variant, origin))


def _byte(variant: Variant, origin: Made) -> int:
    """Where on the shelf an output, or a view of one, lies."""
    output = variant.captured.outputs[origin.index]
    assert output.dtype is not None
    start = origin.view.offset * output.dtype.itemsize if origin.view else 0
    return variant.plan.placements[output.source].offset + output.offset + start


def _view(variant: Variant, origin: Made) -> tuple[torch.dtype, View]:
    output = variant.captured.outputs[origin.index]
    assert output.dtype is not None
    seen = origin.view or View(output.size, output.stride, 0)
    return output.dtype, View(seen.size, seen.stride, _byte(variant, origin) // output.dtype.itemsize)
