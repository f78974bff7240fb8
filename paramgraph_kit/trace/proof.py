"""The result of a comparison bit for bit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proof:
    """A comparison of numbers that was really made: how many values, and how many of them differ in any bit."""

    label: str  # what was compared with what: "replay against eager"
    tensors: int
    values: int
    differing: int
    largest: float | None = 0.0  # difference; None where one of two differing values is no finite number

    @property
    def equal(self) -> bool:
        """Whether every bit is the same."""
        return not self.differing

    def text(self) -> str:
        """The result in a few words.

        >>> Proof("replay against eager", 2, 4096, 3, 0.25).text()
        '3 of 4,096 values differ, by 0.25 at most'
        """
        count = f"{self.values:,} value" + ("s" if self.values != 1 else "")
        if self.equal:
            return f"equal, {count}" if self.values else "nothing to compare"
        by = "not finite" if self.largest is None else f"by {self.largest:.3g} at most"
        return f"{self.differing:,} of {count} differ, {by}"
