"""Other numbers close by: more, and what is no more than it can be (a last step, parts of one whole) less, or moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paramgraph_kit.doctor.number_kinds import OF_NUMPY

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.numbers_within import Inner

Others = dict[tuple[int, str], Any]  # by argument and path within it


def another(value: Any, less: bool = False) -> Any:
    """Another number of the same kind, close by; anything else as it is."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind is int:
        return value - 1 if less else value + 1
    if kind in OF_NUMPY:
        return kind(another(value.item(), less))
    if kind is not float:
        return value
    return value * 0.75 - 0.0625 if less else value * 1.25 + 0.0625


def others_of(some: list[tuple[int, Inner]]) -> Iterator[Others]:
    """Other numbers for some, each a try for what takes none of those before."""
    yield {(at, inner.path): another(inner.value) for at, inner in some}
    yield {(at, inner.path): another(inner.value, less=True) for at, inner in some}
    lists: dict[tuple[int, str], list[Inner]] = {}
    for at, inner in some:
        if type(inner.value) is int:
            lists.setdefault((at, inner.path.rpartition("[")[0]), []).append(inner)
    lists = {place: inside for place, inside in lists.items() if len(inside) > 1}
    exchanged: Others = {}
    moved: Others = {}
    for (at, _), inside in lists.items():  # an order, or sizes that come to one whole
        first = inside[0]
        last = next((each for each in reversed(inside) if each.value != first.value), inside[-1])
        exchanged |= {(at, first.path): last.value, (at, last.path): first.value}
        most = max(inside, key=lambda each: each.value)
        least = next(each for each in inside if each is not most)
        moved |= {(at, most.path): most.value - 1, (at, least.path): least.value + 1}
    for others in (exchanged, moved):
        if any(others[at, inner.path] != inner.value for at, inner in some if (at, inner.path) in others):
            yield others
