"""Captures of a program's own that hold nothing: their replays do nothing, whatever runs around them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

_SAID = "The CUDA Graph is empty"  # torch counts the nodes at the end of a capture
_TEXT = "no operation on the device is in this capture, so its replays do nothing"


@contextmanager
def no_nodes_told(wanted: bool) -> Iterator[list[str]]:
    """Gives what torch says of a graph without nodes while this lasts; all warnings reach who listens, as ever."""
    told: list[str] = []
    if not wanted:
        yield told
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
    told += [text for each in caught if (text := str(each.message)).startswith(_SAID)]
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def holding_nothing(graph: object, regions: Iterable[Region]) -> list[Failure]:
    """What is told of a graph that is replayed and holds nothing, at the line of its capture."""
    found = []
    for region in regions:
        if region.graph is graph:
            frame = frame_at(region.code, region.line)
            fix = (
                f"before  {frame.text}\nafter   what each replay is to do on the device inside of it; where that is "
                "nothing, take this capture and its replays out"
            )
            found.append(replace(BY_ID["empty-graph"].failure(_TEXT, frame), fix=fix))
    return found
