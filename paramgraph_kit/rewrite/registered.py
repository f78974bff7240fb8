"""What is said of random generators of the program's own, which a graph has to know: no line of the step changes."""

from __future__ import annotations

from collections.abc import Sequence

from paramgraph_kit.rewrite.by_hand import hint_for
from paramgraph_kit.rewrite.planning import Attempt
from paramgraph_kit.trace.model import Failure

_REGISTERED = "unregistered-generator"
_STAYS = "; this line stays"


def told(attempt: Attempt, left: Sequence[Failure]) -> tuple[list[Failure], list[str]]:
    """What is left of problems where a captured graph was told of the generators, and how that is done."""
    own = [failure for failure in left if failure.code == _REGISTERED]
    words = dict.fromkeys(hint_for(attempt, failure).removesuffix(_STAYS) for failure in own)
    if not all(words):
        return [*left], []
    return [f for f in left if f not in own], [f"{each}, as this trial did" for each in words]
