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

    def given(self, inputs: Arguments, static: Arguments) -> Arguments:
        """What a graph was captured with, as what is around its launch gets it: numbers are those of today's step."""
        (args, kwargs), (own, named) = static, inputs
        moved = [n for n, each in enumerate(own) if type(each) in (int, float) and each != args[n]]
        others = {n: each for n, each in named.items() if type(each) in (int, float) and each != kwargs[n]}
        if not moved and not others:
            return static
        return tuple(own[n] if n in moved else each for n, each in enumerate(args)), {**kwargs, **others}


NOTHING = Around()
