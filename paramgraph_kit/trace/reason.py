"""Why something is not in a graph, and the line of the user's that it happens at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of the user's own code."""

    file: str  # path, or "<cell 3>" in a notebook
    line: int
    function: str = ""
    text: str = ""

    def label(self) -> str:
        """``file:line  text``, the form every message uses."""
        return f"{self.file}:{self.line}" + (f"  {self.text}" if self.text else "")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not in a graph, at the user's line where one is known."""

    code: str  # stable, kebab-case: "cpu-op", "unbacked-op", "unexplained-word", ...
    message: str
    frame: Frame | None = None
    operation: str = ""

    def label(self) -> str:
        """``message (operation) at file:line  text``."""
        text = self.message
        if self.operation:
            text += f" ({self.operation})"
        if self.frame:
            text += f" at {self.frame.label()}"
        return text
