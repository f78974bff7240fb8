"""A result that is a tensor of the program's own, which its graph or its next call writes over: a note says so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.own_graphs import OwnGraphs
from paramgraph_kit.doctor.restore.keeper import storage_key

NEEDS_COPY = "who keeps it needs a clone()"


def note_of_kept(result: Any, states: Collection[int], graphs: OwnGraphs) -> str:
    """What is said of a result that is no memory of a graph's own; "" where nothing writes over it.

    Args:
        result: what the call gives back.
        states: memory from outside that captures write.
        graphs: what they read, and what the lines around them write.
    """
    keys = {storage_key(each) for each in tensors_in(result)} - {0}
    if not keys.isdisjoint(states):
        return f"its result is a state that each replay writes to: {NEEDS_COPY}"
    read = (key for region in graphs.regions or () for key in graphs.read_and_written(region.graph)[0])
    if not keys.isdisjoint(graphs.written.keys() & set(read)):
        return f"its result is the tensor that its graph reads, which the next call writes over: {NEEDS_COPY}"
    return ""
