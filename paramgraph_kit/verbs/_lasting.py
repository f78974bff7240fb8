"""Whether what is compiled goes on to be launched: numbers that move in later calls, or that other calls are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.proving.closeness import loosely_apart
from paramgraph_kit.rewrite.proving.deadline import RAISES
from paramgraph_kit.rewrite.proving.proof import Arguments, Around, Prover, Seen, Truth

CALLS = 60  # a number that moves in each tenth of them has met as many graphs as Dynamo makes of a function, or nearly
FIRST = 3  # calls that tell how long so many would take
OTHERS = 12  # calls with another number each: more than it makes graphs
MOST_S = 3.0  # for each of both: a step of a large model is called less often
MOST_LATE = 3  # calls behind the first that compile: where each number of the host's does, it is all but the last
MOST_GRAPHS = 64
LIMIT = f"torch._dynamo.config.recompile_limit = {MOST_GRAPHS}"
SETTLING_S = 8.0  # with so many there is more to compile
SETTLED = 20  # calls at the end of which one may still compile


class Later:
    """What a function as it is gives in many more calls, which those of what is compiled of it have to give, too.

    Dynamo may be wrong about what comes late alone: a deque that is full has one entry too many in its graphs.
    """

    def __init__(self, prover: Prover, truth: Truth) -> None:
        own, known = _for_long(prover), Seen()
        begun, calls = worked_s(), 0

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            result, calls = prover.function(*args, **kwargs), calls + 1
            if calls == FIRST and (worked_s() - begun) * CALLS / FIRST > MOST_S:
                raise _Enough
            return result

        try:
            seen = own.launched(call)
            known = {name: values for name, values in seen.items() if name in truth.seen}
            for others in (False, True):  # what grows from a rounding is chance
                near = own.rounded(others=others)
                known = {name: v for name, v in known.items() if not loosely_apart({name: v}, near)}
        except (*RAISES, _Enough):
            known = {}  # a table ends, or they would take too long
        self._known = known

    def agrees(self, seen: Seen | None) -> bool:
        """Whether as many calls of something else gave the same, but for roundings that have grown."""
        return seen is None or not loosely_apart(self._known, seen)


def goes_on(function: Any, prover: Prover, around: Around, later: Later) -> bool:
    """Whether many more calls are right and make next to no graphs: else they are eager from some call on."""
    grown, seen = _grown(function, _for_long(prover), around)
    return sum(grown) <= MOST_LATE and later.agrees(seen)


def settles(function: Any, prover: Prover, around: Around, later: Later) -> bool:
    """Whether they are right, and come to an end of them where Dynamo may make more than eight."""
    with torch_name("dynamo_config").patch({LIMIT.split()[0].rpartition(".")[2]: MOST_GRAPHS}):
        grown, seen = _grown(function, _for_long(prover), around, most=CALLS, seconds=SETTLING_S)
    return len(grown) == CALLS and sum(grown[-SETTLED:]) <= 1 and later.agrees(seen)


def compiled_for_each(function: Any, prover: Prover, around: Around) -> list[str]:
    """The numbers that a function is given of which each other value makes graphs of its own, as it names them."""
    args, kwargs = prover.inputs
    places: list[int | str] = [i for i, value in enumerate(args) if type(value) in (int, float)]
    places += [name for name, value in kwargs.items() if type(value) in (int, float)]
    return [
        _name(prover.function, place)
        for place in places
        if sum(_grown(function, prover.given(_with_others(place), steps=OTHERS), around)[0]) > MOST_LATE
    ]


def of_few_values(names: list[str]) -> str:
    """What to know beside `LIMIT` of numbers, or of what is read, that are compiled each."""
    told = " and ".join(f"`{name}`" for name in names)
    each = f"each other {told} has graphs of its own" if names else "what the host decides has many graphs"
    return (
        f"; {each}, and without the first line calls would be eager once there are eight: that pays where they come "
        "again and again"
    )


def _for_long(prover: Prover) -> Prover:
    return prover.given(lambda _, inputs: inputs, steps=CALLS)


def _grown(
    function: Any, prover: Prover, around: Around, *, most: int = MOST_LATE, seconds: float = MOST_S
) -> tuple[list[bool], Seen | None]:
    """Whether each call has compiled, until too many have, and what all of them gave.

    Where they are so slow that time is over, the last stands for more.
    """
    seen: Seen | None = None
    counts, until = [len(compiled_graphs())], worked_s() + seconds

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        counts.append(len(compiled_graphs()))
        if sum(a < b for a, b in pairwise(counts)) > most or worked_s() > until:
            raise _Enough
        return result

    try:
        seen = prover.launched(call, around)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException:  # seen enough; or it does not take more, as a table ends: what has been seen counts
        pass
    grown = [a < b for a, b in pairwise(counts)]
    goes_on = grown[1:] and all(grown[1:]) and worked_s() > until  # at the first it may be for good
    return grown + [True] * most if goes_on else grown, seen


class _Enough(Exception):  # noqa: N818 - no error: more calls would tell no more
    """It is known by now, or takes longer than anybody waits for what was not asked for."""


def _with_others(place: int | str) -> Callable[[int, Arguments], Arguments]:
    """Another number of the same kind at one place in each step, close by."""

    def change(i: int, inputs: Arguments) -> Arguments:
        args, kwargs = list(inputs[0]), dict(inputs[1])
        held: Any = args if isinstance(place, int) else kwargs
        held[place] += i if type(held[place]) is int else held[place] * i / 64 or i / 64
        return tuple(args), kwargs

    return change


def _name(function: Any, place: int | str) -> str:
    if isinstance(place, str):
        return place
    try:
        return list(inspect.signature(function).parameters)[place]
    except (TypeError, ValueError, IndexError):
        return f"argument {place + 1}"
