"""Numbers of Python's that rewritten lines leave in tensors, where code that no step runs may meet them: they are told.

``self.time += dt`` of a ``dt`` that stays on the device makes ``self.time`` a tensor, which ``json`` does not take, and
which a list that keeps it would see written by each launch; ``scale(x)`` that returned a number returns a tensor.
"""

from __future__ import annotations

import ast
import types
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.driver.profiling import profiled
from paramgraph_kit.rewrite.conditions import Lent
from paramgraph_kit.rewrite.lending import Lending
from paramgraph_kit.rewrite.own_launches import is_replayed_as_it_is
from paramgraph_kit.rewrite.proving.deadline import RAISES
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.source.place import NUMBER, called
from paramgraph_kit.rewrite.source.returned_kinds import A_NUMBER, BACK, on_the_device

HELD = (
    "{names} is a tensor from now on where it was a number, from the first call on, which a warm-up makes before a "
    "capture: read `float({one})` where other code prints, compares, saves or lists it, as each launch writes the same "
    "tensor"
)
ALL_HELD = (
    HELD.replace("is a tensor", "are tensors").replace("it was a number", "they were numbers").replace("it,", "them,")
)
RETURNED = (
    "`{name}` returns a tensor from now on where it was a number: what else calls it gets one, too, and each launch "
    "writes the same: keep a number of it, `.item()`, behind the launch"
)
OTHER_RETURNED = (
    "`{name}` returns a tensor of the device from now on where it was {kind}: what else calls it gets one, too, and "
    "each launch writes the same: keep `{back}` of it, behind the launch"
)
GIVEN = (
    "`{name}` is given a tensor as {given} from now on where it was a number, and its new lines need one: what else "
    "calls it with a number gives `torch.tensor(number)`, on the device where it meets tensors of it"
)
_FROM = ", from the first call on, which a warm-up makes before a capture"
ROUNDED = "; it is rounded to float32 in each step, which a sum over very many of them shows: `.double()` what is added"
_SHORT = (torch.float32, torch.float16, torch.bfloat16)
_OF_BOTH = frozenset(("fill_", "copy_"))  # take a number as well
_MOST_ENTRIES = 4  # of a list that is none of records: a place, a pair of sums
_KINDS = ("global", "cell", "attributes", "container")


def told(attempt: Lending, lines: Lent) -> list[str]:
    """What became a tensor that was a number."""
    before = list(_numbers(attempt))
    after, returned = dict[tuple[int, str], torch.dtype](), dict[tuple[str, str], dict[Any, bool]]()
    finished = dict[Any, bool]()  # of the function itself, also where lines behind its launch make numbers of it
    given = dict[str, dict[str, None]]()
    try:
        with lines.applied(), _returning(attempt, returned, given):
            for holder, values in _whole(attempt, lines, finished).watched(lists=True):
                ones = ((name, value) for name, value in _all_named(holder, values[-1]) if _is_one(value))
                after |= {(id(holder.target), name): value.dtype for name, value in ones}
        made = _made_in_steps(attempt, after.keys() - {place for place, _ in before})
    except RAISES:
        return []  # who knows why not now
    held = sorted({path for place, path in (*before, *made) if place in after})
    was = {(file, name): kinds for (file, name, _), kinds in attempt.kinds_returned.items()}
    returned[attempt.file, attempt.entry_name] = finished
    by = {at[1]: _returned(tensors, was.get(at, {})) for at, tensors in sorted(returned.items())}
    by = {name: kind for name, kind in by.items() if kind and _is_met_elsewhere(attempt, name)}
    found = []
    if held:
        text = HELD if len(held) == 1 else ALL_HELD
        if is_replayed_as_it_is():  # it is one from where it is made, or the rewriting is not whole
            text = text.replace(_FROM, "")
        short = any(after.get(place) in _SHORT for place, _ in before)
        found.append(text.format(names=_listed(held), one=held[0]) + ROUNDED * short)
    other = {name: OTHER_RETURNED.format(name=name, kind=kind, back=BACK.get(kind)) for name, kind in by.items()}
    found += [RETURNED.format(name=name) if kind == A_NUMBER else other[name] for name, kind in by.items()]
    behind = {attempt.entry_name} if lines.around.after is not None else set()  # it is another function by now
    given = {name: names for name, names in given.items() if names and name not in behind}
    found += [
        GIVEN.format(name=name, given=_listed([*names]))
        for name, names in given.items()
        if _is_met_elsewhere(attempt, name)
    ]
    return found


def _returned(tensors: dict[Any, bool], was: dict[Any, str]) -> str:
    """What a part of a result was that is a tensor of the device now."""
    return next((kind for at, kind in was.items() if at in tensors and (tensors[at] or kind != A_NUMBER)), "")


def _whole(attempt: Lending, lines: Lent, finished: dict[Any, bool]) -> Prover:
    """Steps with what goes around their launch, whose results are noted."""
    one, around = attempt.prover.from_now().given(lambda _, inputs: inputs), lines.around
    function = one.function

    def step(*args: Any, **kwargs: Any) -> Any:
        around.prepare((args, kwargs))
        result = around.finish((args, kwargs), function(*args, **kwargs))
        finished.update(on_the_device(result))
        return result

    one.function = step
    return one


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_one(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _named(holder: Holder, value: Any) -> Iterator[tuple[str, Any]]:
    """What a holder has, by its names."""
    if holder.kind in ("global", "cell"):
        yield holder.name, value
    elif isinstance(value, list) and len(value) <= _MOST_ENTRIES:
        yield from ((f"[{at}]", each) for at, each in enumerate(value))
    elif isinstance(value, (list, deque)) and value:
        yield "[-1]", value[-1]  # of records
    elif isinstance(value, dict):
        yield from ((name, each) for name, each in value.items() if isinstance(name, str))


def _all_named(holder: Holder, value: Any) -> Iterator[tuple[str, Any]]:
    """The same, with the entries of dictionaries that attributes are given anew: ``self.info = {"loss": ...}``."""
    for name, each in _named(holder, value):
        yield name, each
        if holder.kind == "attributes" and type(each) is dict and not holder.of_torch:
            yield from ((f'{name}["{key}"]', part) for key, part in each.items() if isinstance(key, str))


def _made_in_steps(attempt: Lending, wanted: Collection[tuple[int, str]]) -> list[tuple[tuple[int, str], str]]:
    """Those of some places where the lines as they were make numbers, which are not there before the first step."""
    if not wanted:
        return []
    return [
        ((id(holder.target), name), _path(holder, name))
        for holder, values in attempt.prover.from_now().anew().watched(lists=True)  # what it has counted stays
        if holder.kind in _KINDS and not holder.of_torch
        for name, value in _all_named(holder, values[-1])
        if (id(holder.target), name) in wanted and type(value) in NUMBER and type(value) is not bool
    ]


def _path(holder: Holder, name: str) -> str:
    if holder.kind in ("global", "cell") or not holder.name:
        return name
    if name.startswith("["):
        return f"{holder.name}{name}"
    return f"{holder.name}.{name}" if holder.kind == "attributes" else f'{holder.name}["{name}"]'


def _numbers(attempt: Lending) -> Iterator[tuple[tuple[int, str], str]]:
    """Where numbers are now, and what the user calls each."""
    for holder in attempt.prover.state.holders:
        if holder.kind not in _KINDS or holder.of_torch:
            continue
        for name, value in _named(holder, holder.read()):
            if type(value) in NUMBER and type(value) is not bool:
                yield (id(holder.target), name), _path(holder, name)


@contextmanager
def _returning(
    attempt: Lending, found: dict[tuple[str, str], dict[Any, bool]], given: dict[str, dict[str, None]]
) -> Iterator[None]:
    """Note which functions of rewritten files return one tensor, and which are given one for a number, and need it."""
    names_of = [(code.co_filename, code.co_name) for code in attempt.ran]
    was = {at: code for at, code in zip(names_of, attempt.ran, strict=True) if names_of.count(at) == 1}

    def look(frame: types.FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "return" and REWRITTEN in file:
            at = file.replace(REWRITTEN, ""), frame.f_code.co_name
            found.setdefault(at, {}).update(on_the_device(argument))
            if at in was and set(frame.f_code.co_names) - set(was[at].co_names) - _OF_BOTH:
                numbers = attempt.plain_in.get((*at, was[at].co_firstlineno), set())
                names = [n for n in _parameters(was[at]) if n in numbers and _is_one(frame.f_locals.get(n))]
                given.setdefault(at[1], {}).update(dict.fromkeys(names))

    with profiled(look):
        yield


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _is_met_elsewhere(attempt: Lending, name: str) -> bool:
    """Whether something but calls that a step has made names a function: a table, another function, a decorator's."""
    if name == attempt.entry_name:
        return True
    ran = {code.co_name for code in attempt.ran}
    for source in attempt.sources.values():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Constant) and node.value == name:
                return True
            if name not in (getattr(node, "id", ""), getattr(node, "attr", "")) or not isinstance(node, ast.expr):
                continue
            above, function = source.parents.get(node), source.function_of(node)
            calls = isinstance(above, ast.Call) and above.func is node and called(above) == name
            if not calls or function is None or function.name not in ran:
                return True
    decorated = (n for s in attempt.sources.values() for n in ast.walk(s.tree) if isinstance(n, ast.FunctionDef))
    return any(n.name == name and n.decorator_list for n in decorated)
