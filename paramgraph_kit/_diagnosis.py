"""What ``diagnose`` returns: a failure that shows itself as text."""

from __future__ import annotations

from typing import Any

from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import failure_text, one_line


class Diagnosis:
    """Why a capture failed, at which line of the user's, and what to write instead; ``failure`` has it as data."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)

    def __repr__(self) -> str:
        frame = self.failure.frame
        where = f" at {frame.label()}" if frame else ""
        return one_line(f"Diagnosis({self.failure.code}: {self.failure.title}{where})")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self)}
