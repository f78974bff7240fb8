"""What the host does before and after a launch, where that has been moved out of the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Around:
    """What the host does before and after each launch, where that has been moved out of the function."""

    before: Callable[[Arguments], None] | None = None  # gets a step's inputs
    after: Callable[[Arguments, Any], Any] | None = None  # gets the result too, and returns what it was once

    def prepare(self, inputs: Arguments) -> None:
        """Do what comes before a launch."""
        if self.before is not None:
            self.before(inputs)

    def finish(self, inputs: Arguments, out: Any) -> Any:
        """Do what comes after a launch; returns the step's own result."""
        return self.after(inputs, out) if self.after is not None else out


NOTHING = Around()
