"""What one problem says already of another at the same line."""

from __future__ import annotations

import ast
from collections.abc import Collection
from types import CodeType

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.before_its_read import is_before_its_read, is_of_a_reading
from paramgraph_kit.doctor.observe.calls import A_LOG
from paramgraph_kit.doctor.observe.compare import ANOTHER, ASKS, MORE, OTHERS, is_branch, may_draw
from paramgraph_kit.doctor.observe.one_call import MOVED
from paramgraph_kit.doctor.observe.refusals import FACTORIES_AND_VIEWS
from paramgraph_kit.doctor.observe.set_between import SET_BETWEEN
from paramgraph_kit.doctor.observe.source_lines import depends, lines_of
from paramgraph_kit.trace.model import Failure, Frame

_READS = ("sync-item", "copy-to-cpu")
_GIVES_NOTHING = ("unregistered-generator", "work-elsewhere", "argument-check")  # to the host, that it could freeze


Given = tuple[str, str, str]  # a file, a function, and a name


def _given(failure: Failure) -> set[Given]:
    """The names to which a line gives what it has read of the device: what they decide is no draw of the host's."""
    at = failure.frame
    nodes = _nodes(at)
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    draws = at is not None and may_draw(at.text)
    return {(at.file, at.function, name) for name in names} if at is not None and not draws else set()


def _reads_one(failure: Failure, given: set[Given]) -> bool:
    at = failure.frame
    names = {n.id for n in _nodes(at) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return at is not None and any((at.file, at.function, name) in given for name in names)


def _nodes(frame: Frame | None) -> list[ast.AST]:
    try:
        return [*ast.walk(ast.parse(frame.text.strip()))] if frame is not None else []
    except SyntaxError:
        return []


def _is_apart(failure: Failure, given: set[Given]) -> bool:
    """Whether a number is frozen whatever else its line does: what it reads has nothing to do with it."""
    around = MOVED in failure.message or SET_BETWEEN in failure.message
    return around or is_before_its_read(failure, _names(failure, given))


def _names(failure: Failure, given: set[Given]) -> set[str]:
    at = failure.frame
    return {name for file, function, name in given if at is not None and (file, function) == (at.file, at.function)}


def without_echoes(problems: list[Failure]) -> list[Failure]:
    """One line need not be told twice: what waits there, and what it freezes because of that."""
    loud = [f for f in problems if f.code not in BY_ID or not BY_ID[f.code].silent]
    waits = {f.frame for f in loud}
    echoes = ("scalar-frozen", "cpu-scalar-frozen", "host-random", "branch-frozen", "size-frozen")
    read = {f.frame for f in loud if f.code not in _GIVES_NOTHING}
    rng = {f.frame for f in problems if f.code == "host-random"}
    read_again = {f.frame for f in problems if f.code == "stale-input"}
    went = [f for f in problems if f.code == "branch-frozen" and not f.message.startswith(ASKS)]
    ways = {(f.frame.file, f.frame.function) for f in went if f.frame}
    branches = {f.frame for f in problems if f.code == "branch-frozen"}
    fewer = {f.frame for f in problems if f.code == "size-frozen" and OTHERS in f.message}
    given = {key for f in loud if f.code in _READS for key in _given(f)}
    return [
        f
        for f in problems
        # Which part of a tensor is read there, is another one because of the branch.
        if not (f.code == "host-random" and f.frame in branches and f.message.split()[0] in FACTORIES_AND_VIEWS)
        # What another way through a function reads follows from that.
        and not (
            f.code == "host-random" and ANOTHER in f.message and f.frame and (f.frame.file, f.frame.function) in ways
        )
        # Of a list that has fewer, as an optimizer's gradients without those of a layer, the others are read there.
        and not (f.code == "host-random" and ANOTHER in f.message and f.frame in fewer)
        and not (f.code == "host-random" and _reads_one(f, given))
        and not (f.code == "scalar-frozen" and is_of_a_reading(f, _names(f, given)))
        and not (f.code == "host-counter" and f.message.startswith((A_LOG, "print(")) and f.frame in waits)
        # What a scheduler moves, or a line around the step sets, is frozen whatever else is done there.
        and not (f.code in echoes and f.frame in read and not _is_apart(f, given))
        and not (f.code == "cpu-scalar-frozen" and f.frame in rng)
        and not (f.code == "output-alias" and f.frame in read_again)
    ]


def without_what_follows(problems: list[Failure], codes: Collection[CodeType]) -> list[Failure]:
    """The same without lines that some calls run more often than others for a reason that is told at its own line."""
    asked = lines_of(f for f in problems if f.code == "branch-frozen" and is_branch(f.frame))

    def follows(failure: Failure) -> bool:
        at = failure.frame
        is_more = failure.code == "branch-frozen" and MORE in failure.message and not is_branch(at)
        return is_more and at is not None and depends(at, asked, codes)

    return [f for f in problems if not follows(f)]
