"""From an exception to a diagnosis: unmask the real cause, find the user's line, say why and what to write instead."""

from __future__ import annotations

from dataclasses import replace

from paramgraph_kit.doctor.explain.gather import gather
from paramgraph_kit.doctor.explain.reasons import failures_of
from paramgraph_kit.doctor.known.evidence import Evidence, first_line
from paramgraph_kit.doctor.known.failure_class import FailureClass
from paramgraph_kit.doctor.known.match import recognise
from paramgraph_kit.trace.errors import RefusedError, cause_chain
from paramgraph_kit.trace.model import Failure

MOST_IN_CHAIN = 4


def explain(exception: BaseException) -> Failure:
    """The failure behind an exception.

    torch.cuda.graph ends the capture even when its body has failed, so the exception that arrives is often an
    echo (901) and the true one hides in its ``__context__``: the whole chain is looked at.

    Args:
        exception: what was caught, with its traceback.

    Returns:
        A Failure; its code is "unknown", and its message the whole chain, where no rule knows it.

    Examples:
        >>> error = RuntimeError("CUDA graphs must be captured on a non-default stream.")
        >>> explain(error).code
        'default-stream'
        >>> explain(KeyError("lr")).title
        'KeyError was raised, and it is none that CUDA graphs are known for'
    """
    known = getattr(exception, "failure", None)
    if (refused := _refused(exception)) is not None:
        return refused
    evidence = _with_lines([gather(item) for item in cause_chain(exception)])
    if isinstance(known, Failure):  # a capture of ours has explained it already
        # It did so inside its ``with``: where only the end of the capture fails, that line is known only out here.
        return replace(known, frame=known.frame or next((item.frame for item in evidence if item.frame), None))
    for item in evidence:
        if each := recognise(item):
            return _failure(item, each, evidence)
    # Nothing precise: prefer any other code to 901, which is only ever an echo, and the first echo to later ones.
    innermost_first = evidence[::-1]
    for item in sorted(innermost_first, key=lambda e: e.code == 901):
        if each := recognise(item, vague=True):
            return _failure(item, each, evidence)
    return _unknown(evidence)


def _refused(exception: BaseException) -> Failure | None:
    """The failure behind an error of our own launcher, which carries its reason."""
    reasons = (item.reason for item in cause_chain(exception) if isinstance(item, RefusedError))
    return next((failure for reason in reasons for failure in failures_of([reason])), None)


def _with_lines(evidence: list[Evidence]) -> list[Evidence]:
    """The same, where what no line of the user's went through has the line of what was raised around it.

    A library that catches an exception and raises another, as ``torch.testing`` does, leaves the first one without.
    """
    found: list[Evidence] = []
    for item in evidence:
        around = next((one for one in reversed(found) if one.frame is not None), None)
        if item.frame is None and around is not None:
            inner = (*item.inner, *around.inner)
            item = replace(item, frame=around.frame, operations=around.operations, exact=around.exact, inner=inner)
        found.append(item)
    for place, item in enumerate(found):
        if item.frame is None:
            found[place] = replace(item, frame=next((one.frame for one in found if one.frame is not None), None))
    return found


def _failure(found: Evidence, each: FailureClass, evidence: list[Evidence]) -> Failure:
    message = first_line(found.message) + (f", inside {found.inside}" if found.inside else "")
    if found is not evidence[0]:
        message += f" (hidden behind: {first_line(evidence[0].message)})"
    frame = (found.told if each.told else None) or found.frame
    return each.failure(message, frame, (*found.operations, *found.inner))


def _unknown(evidence: list[Evidence]) -> Failure:
    lines = [item.headline() for item in evidence[:MOST_IN_CHAIN]]
    if len(evidence) > MOST_IN_CHAIN:
        lines.append(f"and {len(evidence) - MOST_IN_CHAIN} more")
    frame = next((item.frame for item in evidence if item.frame), None)
    return Failure(
        "unknown",
        f"{evidence[0].type} was raised, and it is none that CUDA graphs are known for",
        " <- ".join(lines),
        frame,
        "We do not know this one. If the same code fails without a capture too, capture is not the reason.",
        "run the code once without capturing, and again with CUDA_LAUNCH_BLOCKING=1",
    )
