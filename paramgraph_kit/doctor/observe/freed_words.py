"""What keeps a tensor that a capture reads and that its function alone has: told with the names that it has there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.own_regions import Region, to_keep
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure

_FREED = "freed-input"


def kept_by_name(
    found: Iterable[Failure], regions: Collection[Region], also: Callable[[Failure], bool]
) -> list[Failure]:
    """What has been freed of all that is found, and what is ``also`` told; by name where a capture's line reads it."""
    own = (f for f in found if f.code == _FREED or also(f))
    return [_with_names(f, regions) if f.code == _FREED and f.fix == BY_ID[_FREED].fix else f for f in own]


def _with_names(failure: Failure, regions: Collection[Region]) -> Failure:
    for region in regions:
        frame, file = failure.frame, display_name(region.code.co_filename)
        if frame is None or frame.file != file or not region.body:
            continue
        last = region.body[-1].end_lineno or region.body[-1].lineno
        kept = to_keep(region) if region.body[0].lineno <= frame.line <= last else ""
        names = re.findall(r"\w+", kept.rpartition(".reads = ")[2])
        if not set(names).isdisjoint(re.findall(r"\w+", frame.text)):
            return replace(failure, fix=kept)
    return failure
