"""From the reasons of a compiled model to failures: why something is in no graph, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

from paramgraph_kit.doctor.explain.gather import cuda_code_in, gather
from paramgraph_kit.doctor.explain.operations import calls_of
from paramgraph_kit.doctor.known.catalogue import BY_ID, BY_REASON
from paramgraph_kit.doctor.known.evidence import Evidence, first_line
from paramgraph_kit.doctor.known.failure_class import FailureClass, fix
from paramgraph_kit.doctor.known.match import recognise
from paramgraph_kit.trace.model import Failure, Frame, Reason

NO_PROBLEM = ("not-called", "called-elsewhere", "no-kernels", "not-selected", "slower-as-graph")
ANY = BY_ID["no-graph"]
MOST_NAMES = 3  # of operations in one failure


def failures_of(reasons: Iterable[Reason]) -> list[Failure]:
    """Reasons as failures, one for each kind at each line, however many operations a line has become."""
    groups: dict[tuple[str, Frame | None], list[Reason]] = {}
    for reason in reasons:
        if reason.code not in NO_PROBLEM:
            groups.setdefault((reason.code, reason.frame), []).append(reason)
    return [_failure(group) for group in groups.values()]


def each_once(failures: Iterable[Failure]) -> list[Failure]:
    """One for each kind at each line, the first."""
    found: dict[tuple[str, str, int], Failure] = {}
    for each in failures:
        at = (each.frame.file, each.frame.line) if each.frame else (each.message, 0)
        found.setdefault((each.code, *at), each)
    return list(found.values())


def _failure(group: list[Reason]) -> Failure:
    """What, where, why, and what to write instead."""
    reason = group[0]
    if reason.code == "inductor-skip":  # Inductor's words for why, at the line that they quote
        evidence = gather(RuntimeError(reason.message))
        if (told := recognise(evidence)) is not None:
            return told.failure(first_line(reason.message), evidence.told if told.told else None)
    if reason.code == "capture-failed" and (refused := _refused(reason)) is not None:
        return refused
    each = BY_REASON.get(reason.code) or BY_ID.get(reason.code, ANY)
    names = list(dict.fromkeys(each.operation for each in group if each.operation))
    listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if names[MOST_NAMES:] else "")
    said = f"{listed} {'is' if len(names) == 1 else 'are'} in no graph" if names else ""
    title = reason.message[:1].upper() + reason.message[1:]
    code = each.id if each is not ANY else reason.code
    return Failure(code, title, said, reason.frame, each.cause, _fix(each, reason))


def _fix(each: FailureClass, reason: Reason) -> str:
    """The fix for the operation, where each has its own: ``aten.histc``, ``aten.index_put``, ``mine.operation``."""
    space, _, name = reason.operation.rpartition(".")
    if not each.fixes or "index_put" in name or not name:
        return each.fix
    own = each.fixes["other" if space in ("aten", "prims", "inductor") else "custom"]
    return each.fixes.get(name.strip("_"), own)


def _refused(reason: Reason) -> Failure | None:
    """What a capture of ours ran into, in the words of the class of that; tagged, the operation stays outside."""
    text = reason.frame.text if reason.frame else ""
    evidence = Evidence("RuntimeError", reason.message, cuda_code_in(reason.message), reason.frame, calls_of(text))
    each = recognise(evidence) or recognise(evidence, vague=True)
    if each is None:
        return None
    tag = BY_REASON[reason.code].fix.splitlines()[1].removeprefix("after").strip()
    what_to_do = fix(text or "a custom operation that waits", tag)
    said = f"{reason.message}; the partition runs without a graph"
    return Failure(reason.code, each.title, said, reason.frame, each.cause, what_to_do)
