"""What ``diagnose(..., fix=True)`` makes of problems: a verified diff, one round of a loop, pieces, or words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from paramgraph_kit.doctor.diagnosis import Diagnosis

if TYPE_CHECKING:
    from paramgraph_kit.rewrite.result import Rewriting
    from paramgraph_kit.rewrite.truths import Known
    from paramgraph_kit.trace.model import Failure
    from paramgraph_kit.verbs._pieces import Pieces

EMPTY = "empty-graph"
REFUTED = ("replays of one graph would", "replays of one graph differ")  # what was tried of a diff, and is wrong
ENDS = ("raises", "exits", "time-limit")  # what ends a call, captured or not


def fixed(found: Diagnosis, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Failure]:
    """Have the function rewritten; what is left to do by hand."""
    from paramgraph_kit.rewrite.proving.deadline import outlived
    from paramgraph_kit.rewrite.result import Rewriting
    from paramgraph_kit.rewrite.set_between_launches import tell_set_between
    from paramgraph_kit.rewrite.settled import settled
    from paramgraph_kit.rewrite.truths import Known

    known, failures = Known(), [*found.failures]
    try:
        with outlived():
            left = _rewritten(found, what, args, kwargs, known)
        if isinstance(found.fix, Rewriting):
            tell_set_between(found.fix, failures)
            found.fix = settled(found.fix)
        found.notes = (*found.notes, *known.told())
        return left
    finally:
        known.forget()


def _rewritten(
    found: Diagnosis, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Known
) -> list[Failure]:
    from paramgraph_kit.doctor.observe.gradients import nulls_around
    from paramgraph_kit.doctor.observe.other_readings import follows
    from paramgraph_kit.doctor.observe.other_ways import is_led
    from paramgraph_kit.rewrite import rewriting
    from paramgraph_kit.rewrite.by_hand import all_told
    from paramgraph_kit.rewrite.cell_step import as_step
    from paramgraph_kit.rewrite.little import tell_little
    from paramgraph_kit.rewrite.result import Rewriting
    from paramgraph_kit.rewrite.round_missed import tell_missed
    from paramgraph_kit.rewrite.round_within import one_round
    from paramgraph_kit.rewrite.truths import LINES, ROUNDS

    if found.codes == (EMPTY,) or all(map(nulls_around, found.failures)):  # there are no lines of a graph to rewrite
        return []
    ended = any(failure.code in ENDS for failure in found.failures)
    left: list[Any] = []  # one round that is a function, and no graph yet
    # What no trial runs, and what another line's reading brings, is not rewritten by itself.
    ran = [f for f in found.failures if not is_led(f) and not follows(f)] or found.failures
    given = what, args, kwargs, ran
    known.begin(ROUNDS)
    if not ended and (alone := one_round(*given, of_loader=True, known=known, left=left)) is not None:
        if alone.worth.is_little and (pieces := more_in_pieces(alone, what, args, kwargs, known)):
            alone = Rewriting(alone.function, pieces=pieces.text, left=[*found.failures])
            found.fix = alone
            return alone.left
        found.fix = alone
        return tell_missed(what, args, kwargs, found.failures, alone)
    known.begin(LINES)
    try:
        found.fix = rewritten = rewriting.rewrite(*given, known=known)
    except Exception as error:  # an object of the user's may raise where it is looked at, and we may be wrong
        text = f"no rewrite was tried, as looking for one ended with {type(error).__name__}: {error}"
        found.notes = (*found.notes, text)
        return []
    if not ended and (not rewritten.complete or rewritten.worth.is_little):
        known.begin(ROUNDS, last=True)
        alone = one_round(*given, of_loader=False, known=known)
        if alone is not None and (not rewritten.complete or alone.worth.share > rewritten.worth.share):
            if alone.worth.is_little and (pieces := more_in_pieces(alone, what, args, kwargs, known)):
                found.fix = rewritten = Rewriting(rewritten.function, pieces=pieces.text, left=[*found.failures])
                return rewritten.left
            found.fix, alone.known = alone, rewritten.known
            return tell_missed(what, args, kwargs, found.failures, alone)
        if rewritten.complete and (pieces := more_in_pieces(rewritten, what, args, kwargs, known)):
            found.fix = rewritten = Rewriting(rewritten.function, pieces=pieces.text, left=[*found.failures])
            return rewritten.left
        if rewritten.complete and not rewritten.is_little:
            tell_little(rewritten)
    elif rewritten.complete and rewritten.worth.is_tiny and not rewritten.is_little:
        tell_little(rewritten)
    if not rewritten.complete and not ended:
        from paramgraph_kit.doctor.observe.kept_arguments import BY_OBJECT
        from paramgraph_kit.verbs._pieces import NOT_PROVED, in_pieces

        if (in_a_function := as_step(what)) is not None:
            found.fix = in_a_function
            return []
        by_object = any(BY_OBJECT in each.message for each in found.failures)  # for which Dynamo has no guard
        pieces = NOT_PROVED if by_object else in_pieces(what, args, kwargs, rewritten, known)
        rewritten.pieces = pieces.text
        leads_on = bool(rewritten.left) and all_told(rewritten.instead, rewritten.left)
        # Several places of which nobody has tried what is to be written: one that is wrong makes all of it wrong.
        leads_on = leads_on and not (pieces.is_most and rewritten.instead[1:])
        if pieces and not leads_on and not pieces.is_apart:
            rewritten.instead = []  # what is proved is the fix
        if pieces.is_plain and not pieces.is_apart and (not leads_on or _brings_more(rewritten.left, ran)):
            refuted = [f"of rewritten lines, {each}" for each in rewritten.verified if each.startswith(REFUTED)]
            found.notes = (*found.notes, *refuted)
            found.fix = rewritten = Rewriting(rewritten.function, pieces=rewritten.pieces, left=[*found.failures])
        if left:
            found.fix = left[0]
            left[0].pieces = pieces.text if pieces.is_plain else ""
            same = set(map(_line_of, left[0].left))
            return [f for f in found.failures if _line_of(f) in same]
        if not pieces and rewritten.otherwise is not None:
            found.fix = rewritten = rewritten.otherwise
    return rewritten.left


def more_in_pieces(
    rewritten: Rewriting, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Known | None = None
) -> Pieces:
    """What compiling brings of lines as they are, where a graph of the rewritten ones has less of them."""
    from paramgraph_kit.verbs._pieces import NOT_PROVED, in_pieces

    pieces = in_pieces(what, args, kwargs, rewritten, known)
    return pieces if pieces.is_plain and pieces.kernels > rewritten.worth.inside else NOT_PROVED


def _brings_more(left: Iterable[Failure], known: Iterable[Failure]) -> bool:
    """Whether rewritten lines, which make no graph, have moved a question to lines that had none."""
    return not set(map(_line_of, left)) <= set(map(_line_of, known))


def _line_of(failure: Failure) -> tuple[str, str]:
    """What a problem is, and the text of its line, which has another number in a rewritten file."""
    return failure.code, failure.frame.text if failure.frame else ""
