"""Graphs that take turns take their workspace in pieces of the same sizes.

An allocator keeps what it was given back and serves a request from a piece of its size or more. Eleven graphs with
eleven sizes of workspace, each a little larger than the one before, would have it keep eleven pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramgraph_kit.launch.generate import State
from paramgraph_kit.launch.plan import Plan

Place = tuple[int, int, int, int]
ALIKE = 8  # a graph that needs less than one part in so many of what another needs takes no more than its own


def share_room(turns: Iterable[tuple[Plan, State]]) -> None:
    """Let each take, for each of its blocks, what the largest does of those that take one then.

    Graphs that are launched in other stages take theirs beside others: what is most for each would be too much for all.
    """
    rows = [(list(_places(plan)), plan, state) for plan, state in turns]
    most: dict[Place, int] = {}
    for places, plan, _ in rows:
        for place, block in zip(places, plan.blocks, strict=True):
            most[place] = max(block.nbytes, most.get(place, block.nbytes))
    for places, plan, state in rows:
        found = [(block.nbytes, most[place]) for place, block in zip(places, plan.blocks, strict=True)]
        state.rooms[:] = [all_ if need * ALIKE >= all_ else need for need, all_ in found]


def _places(plan: Plan) -> Iterator[Place]:
    """Of each block: how many stages there are, the first and last that it is for, and how many such came before."""
    spans = [(block.first, block.last) for block in plan.blocks]
    for n, span in enumerate(spans):
        yield len(plan.stages), *span, spans[:n].count(span)
