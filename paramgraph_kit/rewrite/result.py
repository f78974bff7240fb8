"""Lines of the user's, rewritten: the diff, what was tried with it, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.rewrite.proving.proof import NOTHING, Around
from paramgraph_kit.rewrite.proving.worth import ALL, Worth
from paramgraph_kit.trace.model import Failure

# State that a capture makes, as of a parameter whose first gradient comes there, would begin anew in each replay.
ANEW = "capture it anew where that changes, once it has run as it is there"


@dataclass(slots=True)
class Rewriting:
    """Lines of the user's, rewritten: the diff, what was tried with it, and what is left to do by hand."""

    function: str
    diff: str = ""
    verified: list[str] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)  # what could not be rewritten safely, and what to do
    left: list[Failure] = field(default_factory=list)  # the same as data
    unsaid: list[Failure] = field(default_factory=list)  # those of which ``instead`` does not say what to write
    complete: bool = False  # everything found is rewritten, and one graph gives eager's numbers
    is_little: bool = False  # but most of it runs behind that, and ``instead`` says how more would be in it
    otherwise: Rewriting | None = None  # such a one, for where nothing better is known
    usage: str = ""  # how what was moved behind the launch is called
    loop: list[str] = field(default_factory=list)  # the same as a user's lines, about what `launched` is
    pieces: str = ""  # what compiling it brings where it cannot be one graph, tried as well
    known: str = ""  # which arguments to give on the CPU, where nothing has to be rewritten then; tried as well
    around: Around = NOTHING  # what was moved, as functions of a step's inputs and result
    worth: Worth = ALL  # how much of a step is in its graph
    begins: list[Any] = field(default_factory=list)  # numbers that a program's own capture would begin with each time
    stale: str = ""  # what gets another value behind the launch, and a graph would keep
    exchanged: tuple[str, ...] = ()  # tensors that are others behind each step, where a graph would read the first
    texts: dict[str, list[str]] = field(default_factory=dict)  # the lines of each file that has others
    alone: str = ""  # one round of its loop, cut out as this function, which is what is captured, and whole
    is_of_loop: bool = True  # or a part of what is done once
    bound: int = 0  # of its arguments so many are no tensors, and come first
    anew: tuple[str, ...] = ()  # attributes of those that the function makes before the loop, in each call
    given: tuple[Any, ...] = ()  # its arguments in the first round
    capture: str = ""  # what is captured, in the user's words: ``partial(train_round, model)``
    run: dict[str, list[str]] = field(default_factory=dict)  # the same where what goes around a launch is not called
    more: list[Rewriting] = field(default_factory=list)  # rounds of other loops, each with a graph of its own
    _borrow: Any = None

    @contextmanager
    def applied(self) -> Iterator[Any]:
        """While this lasts the user's own function runs the rewritten lines; nothing is written to a file.

        Gives the function of one round or part, where that is what is captured, or None. The user's function calls it
        with what goes around its launches. What is captured, that or the user's function itself, leaves that to who
        launches it: ``around.prepare((args, kwargs))`` before, and ``around.finish`` after.
        """
        if self._borrow is None:
            yield None
            return
        with self._borrow() as made:
            yield made

    def __str__(self) -> str:
        parts = [self.diff] if self.diff else []
        parts += [f"  then   {self.usage}"] if self.usage else []
        parts += [f"  tried  {line}" for line in self.verified]
        parts += [f"  pieces   {self.pieces}"] if self.pieces else []  # what is proved comes first
        parts += [f"  {'by hand' if not self.is_little else 'for more'}  {line}" for line in self.instead]
        parts += [f"  or     {self.known}"] if self.known else []
        return "\n".join(parts) if parts else "  nothing to rewrite"

    def __repr__(self) -> str:
        lines = sum(line.startswith("+") and not line.startswith("+++") for line in self.diff.splitlines())
        state = "verified" if self.complete else f"{len(self.instead)} by hand"
        state = f"{self.alone} verified" if self.alone else state
        return f"Rewriting({self.function}: {lines} new lines, {state})"
