"""What to write for each problem in the user's own line, as far as its text tells: nothing is run for it, or tried."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Never

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.advice import hint
from paramgraph_kit.rewrite.edits import Source
from paramgraph_kit.rewrite.place import Form, Place
from paramgraph_kit.rewrite.planning import Attempt
from paramgraph_kit.rewrite.proof import Prover
from paramgraph_kit.rewrite.reach import attributes_of
from paramgraph_kit.trace.model import Failure

BEHIND = "the same behind each launch, where nothing waits for it; fix=True moves it there"
ANEW = (
    "the same, and at the end of the step written into the tensor that was read: `held.copy_(new)`; fix=True writes "
    "that. A parameterized launch reads whatever tensor is there"
)
MOST_LINES = 6  # of an example
_OF_STEPS = ("stale-input",)  # what these rules ask for is seen in several steps


def in_own_lines(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    by_hand: Sequence[Failure] = (),
) -> list[Failure]:
    """The same, each with its own line before and after, where that line tells what to write.

    ``by_hand`` are those of which a rewrite has been tried, and that are left: of these only what to do is told.
    """
    try:
        attempt = _Unrun(function, args, kwargs, _Still(function, args, kwargs))
    except Exception:  # it answers as it likes; the example of the class has to do
        return [*failures]
    attempt.unsafe = {id(each): "left" for each in by_hand}
    return [_own(attempt, failure) for failure in failures]


class _Unknown(Mapping[str, Form]):
    """What nobody has seen: a rule that asks for a tensor's shape finds nothing without it."""

    def __getitem__(self, name: str) -> Never:
        raise _Unseen

    def __iter__(self) -> Iterator[str]:
        raise _Unseen

    def __len__(self) -> int:
        raise _Unseen


class _Unseen(Exception):  # noqa: N818 - no error: it ends a rule
    """The shape of a tensor was asked for."""


class _Still(Prover):
    """Holds what a function can reach, and never runs it."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.state = function, HostState(function, args, kwargs)


class _Unrun(Attempt):
    """One function of whose steps nothing is known; lines are rewritten where they stand."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], prover: Prover) -> None:
        super().__init__(function, args, kwargs, prover)
        self.moves = self.feeds = False

    def forms_in(self, *_: object) -> Any:
        """Nobody has seen them."""
        return _Unknown()


def _own(attempt: _Unrun, failure: Failure) -> Failure:
    try:
        at = attempt.place(failure)
        pair = _pair(attempt, failure, *at) if at is not None else None
    except Exception:  # an object of the user's may raise whatever it likes where it is looked at
        return failure
    if pair is None:
        return failure
    before, after = (textwrap.indent("\n".join(lines), " " * 8).strip() for lines in pair)
    return replace(failure, fix=f"before  {before}\nafter   {after}")


def _pair(attempt: _Unrun, failure: Failure, source: Source, statement: Any) -> tuple[list[str], list[str]] | None:
    """Lines before and after, or the line and what to do about it."""
    held = attributes_of(attempt.prover.state)
    said = hint(Place(source, statement, failure, attempt.device, space=attempt.space, attributes=held))
    line = [failure.frame.text if failure.frame is not None else ""]
    if said.startswith("belongs behind the launch"):
        return line, [BEHIND]
    if (
        failure.code not in _OF_STEPS
        and id(failure) not in attempt.unsafe
        and (changed := _changed(attempt, failure)) is not None
    ):
        return changed
    said = said or (ANEW if failure.code in _OF_STEPS else "")
    return (line, [said.replace(", so it was not rewritten", "")]) if said else None


def _changed(attempt: _Unrun, failure: Failure) -> tuple[list[str], list[str]] | None:
    """The lines that a rewrite of one problem takes out and puts in."""
    try:
        plans = attempt.plans([failure])
    except _Unseen:
        return None
    gone, new = list[str](), list[str]()
    for file, lines in attempt.texts(plans).items():
        old = attempt.sources[file].lines
        for kind, first, end, begin, last in difflib.SequenceMatcher(None, old, lines, False).get_opcodes():
            if kind != "equal":
                gone += old[first:end]
                new += lines[begin:last]
    gone, new = _dedented(gone), _dedented(new)
    return (gone, new) if gone and new and max(len(gone), len(new)) <= MOST_LINES else None


def _dedented(lines: Sequence[str]) -> list[str]:
    return [line for line in textwrap.dedent("".join(lines)).splitlines() if line.strip()]
