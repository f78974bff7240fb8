"""What an examination of a function has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.trace.model import Failure


@dataclass(slots=True)
class Examination:
    """What was found: problems, and what is no problem but good to know."""

    problems: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    operations: int = 0  # on the device, in one call
    calls: int = 0
    result: Any = None
    lost: bool = False  # the device answers no more, so not all could be put back
    regions: list[Region] | None = None  # what it captures in each of its calls: the rest of it is no capture's
    inside: list[Region] = field(default_factory=list)  # what it, or its file, has captured before, and it replays
