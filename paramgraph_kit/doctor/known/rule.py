"""What a rule of the doctor is."""

from __future__ import annotations

from dataclasses import dataclass

from paramgraph_kit.doctor.known.evidence import Evidence
from paramgraph_kit.trace.model import Failure, Frame


@dataclass(frozen=True, slots=True)
class Rule:
    """One class of failure; every condition that is given must hold."""

    code: str
    title: str
    cause: str
    fix: str
    syncs: bool = False  # the CPU wants to wait for the GPU: 900, or torch's own check of copies
    codes: tuple[int, ...] = ()  # CUDA error codes
    says: tuple[str, ...] = ()  # any of these in the message
    operations: tuple[str, ...] = ()  # any of these at the user's line
    files: tuple[str, ...] = ()  # any of these in the path of a library file that raised
    hints: tuple[str, ...] = ()  # all of these about the source
    told: bool = False  # the line is the one that the message quotes

    def matches(self, evidence: Evidence, operations: tuple[str, ...]) -> bool:
        """Whether all conditions hold, for these of the line's operations."""
        return (
            (not self.syncs or evidence.syncs)
            and (not self.codes or evidence.code in self.codes)
            and (not self.says or any(text in evidence.message for text in self.says))
            and (not self.operations or any(name in self.operations for name in operations))
            and (not self.files or any(name in file for file in evidence.files for name in self.files))
            and all(hint in evidence.hints for hint in self.hints)
        )

    def failure(self, message: str, frame: Frame | None) -> Failure:
        """This class at a line of the user's; ``message`` is what was said or seen there."""
        return Failure(self.code, self.title, message, frame, self.cause, self.fix)


def fix(before: str, after: str) -> str:
    """The two lines of a fix: what is written now, and what to write instead."""
    return f"before  {before}\nafter   {after}"
