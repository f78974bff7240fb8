"""What is empty of all that a function leads to: a model has thousands, as for its hooks, and each call asks all."""

from __future__ import annotations

from typing import Any

from paramgraph_kit.doctor.restore.holder import Holder


class Sorted:
    """Holders, those apart that are plain, the user's and were empty at first."""

    def __init__(self, holders: list[Holder], kept: list[Any]) -> None:
        self.of = kept
        pairs = [*zip(holders, kept, strict=True)]
        self.at = [n for n, (each, then) in enumerate(pairs) if each.is_plain and not each.of_torch and not then]
        self.empty = [holders[n].target for n in self.at]
        apart = {*self.at}
        self.rest = [n for n in range(len(holders)) if n not in apart]
        self.blank = [then if n in apart else None for n, then in enumerate(kept)]  # what these are read as
