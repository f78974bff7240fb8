"""What a program keeps of its graphs' memory: lists and dictionaries that have more after a call."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from paramgraph_kit.doctor.observe.captured_before import written_in
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.own_graphs import OwnGraphs
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.keeper import storage_key


def states(graphs: OwnGraphs) -> set[int]:
    """Memory from outside that their captures write."""
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        return {storage_key(t) for region in graphs.regions or () for _, t in written_in(region)}
    return set()


def owned(changes: Iterable[Change], graphs: OwnGraphs) -> list[Change]:
    """Those that have more after a call, and hold what a graph writes."""
    held: Any = (each for each in changes if isinstance(each.after, (list, dict)) and each.before is not None)
    grown = [each for each in held if len(each.after) > len(each.before)]
    written = states(graphs) if grown else set()
    return [c for c in grown if graphs.owns(c.after) or written & {storage_key(t) for t in tensors_in(c.after)}]
