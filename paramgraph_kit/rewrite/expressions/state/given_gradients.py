"""A gradient of what a step is given begins anew in the graph, as it does with another tensor at each call."""

from __future__ import annotations

import re

from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place

_NAMED = re.compile(r"^`(\w+)\.grad` is a new one at each call")


def begin_anew(place: Place) -> list[Edit]:
    """``x.grad = None`` ahead of the backward pass that makes it."""
    named = _NAMED.match(place.failure.message)
    return [place.source.before(place.statement, [f"{named[1]}.grad = None"])] if named else []
