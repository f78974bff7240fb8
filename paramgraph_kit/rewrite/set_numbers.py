"""Numbers of objects that lines around a step set between its calls: replays with others than those of the capture.

A count that the step itself moves has other values in each trial. One that only a sampler's loop sets (``self.t = t``)
has not, and lines that read it beside a line that is given it in a tensor would go on with what the graph has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from paramgraph_kit.doctor.observe.set_between import SET_BETWEEN
from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.conditions import Lent
from paramgraph_kit.rewrite.lending import Lending
from paramgraph_kit.rewrite.proving.around import Around
from paramgraph_kit.rewrite.proving.closeness import loosely_apart
from paramgraph_kit.rewrite.proving.deadline import Deadline, unless_raises
from paramgraph_kit.rewrite.proving.proof import WARM_UP, Arguments, Prover, Truth
from paramgraph_kit.trace.model import Failure

LIMIT_S = 5.0
_KEPT = "where `{}` is set between launches, replays of one graph would differ ({})"
_NUMBERS = (int, float)
_WAYS = (1, -1)  # a place in a table has no next one at its end


def wrong_set(attempt: Lending, truth: Truth, lines: Lent, failures: Sequence[Failure]) -> str:
    """What replays do otherwise as such numbers move on; "" where nothing, or where the step takes no others."""
    for path, holder in _set_between(attempt, failures):
        for way in _WAYS:
            together = _differ(attempt, truth, lines, holder, path.rpartition(".")[2], way)
            if together:
                return _KEPT.format(path, together)
            if together is not None:
                break
    return ""


def kept_by(why: str) -> str:
    """The name that ``wrong_set`` has told of: a graph would keep it, unless all its readers are given it in tensors.

    >>> kept_by("where `self.t` is set between launches, replays of one graph would differ (0.5 and 0.25)")
    't'
    """
    head, _, tail = _KEPT.partition("{}")
    path, is_told, _ = why.removeprefix(head).partition(tail.partition("{}")[0])
    return path.rpartition(".")[2] if why.startswith(head) and is_told else ""


def _set_between(attempt: Lending, failures: Sequence[Failure]) -> Iterator[tuple[str, Holder]]:
    """The numbers that are told so, each with the one thing that has it."""
    texts = [f.message.partition(SET_BETWEEN) for f in failures if f.code == "scalar-frozen"]
    told = [before.strip().rpartition(" ")[2] for before, between, _ in texts if between]
    for path in dict.fromkeys(told):
        name = path.rpartition(".")[2]
        found = [each for each in attempt.prover.state.holders if _number(each, name) is not None]
        if len(found) == 1:
            yield path, found[0]


def _number(holder: Holder, name: str) -> int | float | None:
    """What a thing has by a name, if that is a number."""
    if holder.kind in ("cell", "global"):
        value = holder.read() if holder.name == name else None
    else:
        value = holder.read().get(name) if holder.kind in ("attributes", "slots") else None
    return value if type(value) in _NUMBERS else None


def _differ(attempt: Lending, truth: Truth, lines: Lent, holder: Holder, name: str, way: int) -> str | None:
    """How replays differ with numbers that move on behind the capture; None where the step takes no such numbers."""
    first = _number(holder, name)

    def moving(around: Around) -> Around:
        steps = count()

        def before(inputs: Arguments) -> None:
            step = max(0, next(steps) - WARM_UP)
            value: Any = first + way * step if type(first) is int else first * 0.5**step  # type: ignore[operator]
            holder.write(value if holder.kind in ("cell", "global") else {**holder.read(), name: value})
            around.prepare(inputs)

        return Around(before, around.after)

    def one() -> Prover:
        other = attempt.prover.from_now()
        other.deadline = Deadline(LIMIT_S)
        return other

    seen, again = (unless_raises(lambda: one().eager(moving(Around()))) for _ in range(2))
    if seen is None or again is None:
        return None
    known = {key: v for key, v in seen.items() if key in truth.seen and not loosely_apart({key: v}, again)}
    with lines.applied():
        new = unless_raises(lambda: one().captured(moving(lines.around)))
    return "it raises" if new is None else loosely_apart(known, new)
