"""Graphs that take turns take their workspace in pieces of the same sizes.

An allocator keeps what it was given back and serves a request from a piece of its size or more. Eleven graphs with
eleven sizes of workspace, each a little larger than the one before, would have it keep eleven pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from paramgraph_kit.launch.generate import State
from paramgraph_kit.launch.plan import Plan

ALIKE = 8  # a graph that needs less than one part in so many of what another needs takes no more than its own


def share_room(turns: Iterable[tuple[Plan, State]]) -> None:
    """Let each take, for each of its blocks, what the largest of them takes."""
    turns = list(turns)
    needs = [[block.nbytes for block in plan.blocks] for plan, _ in turns]
    most = [max(sizes) for sizes in zip_longest(*needs, fillvalue=0)]
    for (_, state), mine in zip(turns, needs, strict=True):
        state.rooms[:] = [all_ if need * ALIKE >= all_ else need for need, all_ in zip(mine, most, strict=False)]
