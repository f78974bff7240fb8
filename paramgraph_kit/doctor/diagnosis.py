"""What ``diagnose`` returns: failures that show themselves as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import Any, Protocol

from paramgraph_kit.trace.cards import failure_cards
from paramgraph_kit.trace.errors import ParamgraphError
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import failure_text, one_line

MOST_LINES = 12  # of one failure
WIDTH = 100
UNTRIED = "fixes are in your own lines, and not tried: diagnose(fn, ..., fix=True) tries them, and shows one diff"


class Fix(Protocol):
    """Lines of the user's, rewritten: its text is the diff, what was tried with it, and what is left to do by hand."""

    diff: str
    left: list[Failure]
    unsaid: list[Failure]  # those of them of which ``instead`` does not say what to write
    verified: list[str]  # what was tried
    instead: list[str]  # what could not be rewritten safely, and what to do
    usage: str  # how what was moved behind the launch is called
    pieces: str  # what compiling it brings where it cannot be one graph, tried as well
    around: Any  # what was moved, as functions of a step's inputs and result
    complete: bool  # everything found is rewritten, and one graph gives eager's numbers
    texts: dict[str, list[str]]  # the lines of each file that has others
    alone: str  # one round of its loop, cut out as this function, which is what is captured
    is_of_loop: bool  # or a part of what is done once
    stale: str  # what gets another value behind the launch, and a graph would keep

    def applied(self) -> AbstractContextManager[Any]:
        """While this lasts the user's own function runs the rewritten lines; nothing is written to a file."""


class Diagnosis:
    """What goes wrong, at which line of the user's, why, and what to write instead.

    ``failures`` has it as data, in the order of lines; ``notes`` are no problems, but good to know. It is false where
    nothing was found, and has a length.
    """

    def __init__(
        self, failures: Sequence[Failure], heading: str = "", notes: Sequence[str] = (), state: str = ""
    ) -> None:
        self.failures = tuple(failures)
        self.heading = heading
        self.notes = tuple(notes)
        self.state = state  # of this process, after a failed capture
        self.untried = False  # fixes are lines of the user's that nobody has run
        self.fix: Fix | None = None  # lines of the user's rewritten, where that was asked for
        self.fix_inside: Fix | None = None  # those of what a graph of the function's own holds, which it only replays

    @property
    def failure(self) -> Failure:
        """The first failure.

        Raises:
            ParamgraphError: nothing was found.
        """
        if not self.failures:
            raise ParamgraphError("nothing was found, so there is no failure: ask len(diagnosis) first")
        return self.failures[0]

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of every failure."""
        return tuple(failure.code for failure in self.failures)

    def __len__(self) -> int:
        return len(self.failures)

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.failures)

    def __str__(self) -> str:
        parts = [self.heading] if self.heading else []
        now = textwrap.wrap(one_line(self.state), WIDTH, initial_indent="  now    ", subsequent_indent=" " * 9)
        parts += [failure_text(failure, most=MOST_LINES - len(now)) for failure in self.failures]
        if told := self._told():
            parts.append("\n".join(f"  note   {one_line(note)}" for note in told))
        parts += [str(fix) for fix in self._fixes()]
        return "\n".join(["\n\n".join(parts), *now])

    def _fixes(self) -> list[Fix]:
        """Each that there is, once: that of a graph within is the only one perhaps."""
        found = [self.fix, self.fix_inside if self.fix_inside is not self.fix else None]
        return [fix for fix in found if fix is not None]

    def _told(self) -> list[str]:
        return [*self.notes, *([UNTRIED] if self.untried else [])]

    def __repr__(self) -> str:
        if len(self.failures) != 1:
            listed = ", ".join(
                f"{f.code} at {f.frame.file}:{f.frame.line}" if f.frame else f.code for f in self.failures
            )
            return one_line(f"Diagnosis({len(self.failures)} problems{': ' if listed else ''}{listed})")
        frame = self.failure.frame
        where = f" at {frame.label()}" if frame else ""
        return one_line(f"Diagnosis({self.failure.code}: {self.failure.title}{where})")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        cards = failure_cards(self.failures, self.heading, self._told(), self.state)
        return cards + "".join(f"<pre>{escape(str(fix))}</pre>" for fix in self._fixes())
