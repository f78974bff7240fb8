"""Calls with other numbers than the user's, as arguments and in outer variables: what they decide is frozen."""

from __future__ import annotations

import ast
import inspect
import re
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import AMOUNTS
from paramgraph_kit.doctor.observe import freed_gradients, read_apart, read_otherwise
from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.examination import Examination
from paramgraph_kit.doctor.observe.held import code_of
from paramgraph_kit.doctor.observe.near_numbers import Others, another, others_of
from paramgraph_kit.doctor.observe.numbers_within import Inner, numbers_within, with_others_within
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.other_words import Given, with_other_words
from paramgraph_kit.doctor.observe.settings_given import with_others
from paramgraph_kit.doctor.restore.holder import Holder, same
from paramgraph_kit.trace.model import Failure, Frame

OTHER_NUMBERS = "(tried other numbers for "  # what a message has where another argument decides
_OF_OBJECT = (
    "numbers of the {names} among its arguments are frozen at {at}: where a call is given others, capture once for each"
)
_LEFT = ("scalar-frozen", "learning-rate-frozen", "branch-frozen", "size-frozen")
_OF_A_WORD = (
    "a graph keeps what {own!r} among the arguments decides ({new!r} does otherwise at {at}): where others come, "
    "capture once for each"
)
_MOST_WORDS = 2
_MOST_ALONE = 6  # numbers that are tried each by itself
TAKES_NO_OTHERS = "with other numbers as arguments it fails, so what they decide could not be seen"


def _others(caller: Caller) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function, with other numbers."""
    return tuple(map(another, caller.args)), {name: another(value) for name, value in caller.kwargs.items()}


def _with_objects(caller: Caller, kinds: tuple[type, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function, with other numbers also in the objects and dictionaries among them."""

    def moved(value: Any) -> Any:
        return another(value) if type(value) in kinds else with_others(value, kinds, another)

    return tuple(map(moved, caller.args)), {name: moved(value) for name, value in caller.kwargs.items()}


def call_with_others(caller: Caller) -> None:
    """Call a function that replays once more with other numbers, and words: what they set is seen at its replays."""
    numbers = (_others(caller), _with_objects(caller, (bool, int, float)), _with_objects(caller, (float,)))
    words: list[Given] = []
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        words += with_other_words(caller)
    for args, kwargs in (*numbers, *words):
        given = zip((*args, *kwargs.values()), (*caller.args, *caller.kwargs.values()), strict=True)
        if all(a is b for a, b in given):
            continue
        held = [(r.values, dict(r.values.moved)) for r in caller.graphs.regions or () if r.values is not None]
        if caller.call(args, kwargs, led=True).ended is not None:  # it takes no others
            for values, moved in held:
                values.moved = moved


def is_key(caller: Caller, name: str) -> bool:
    """Whether a function captures again where it is given another number by a name: its table of graphs has that."""
    try:
        bound = inspect.signature(caller.function).bind(*caller.args, **caller.kwargs)
    except (TypeError, ValueError):
        return False
    number = bound.arguments[name]
    for _ in range(2):  # a call with others may have captured for the first of them
        bound.arguments[name] = number = another(number)
        call = caller.call(bound.args, bound.kwargs, led=True)
        if call.captures and call.ended is None:
            return True
    return False


def frozen_arguments(caller: Caller, base: Call, seen: list[Failure], found: Examination) -> list[Failure]:
    """Call once more with other numbers as arguments, and within them: what they decide is frozen."""
    given = [*(("", value) for value in caller.args), *caller.kwargs.items()]
    every = [(at, inner) for at, (_, value) in enumerate(given) for inner in numbers_within(value)]
    if not every:
        return freed_gradients.problems(seen, caller, base)
    drawn = {f.frame for f in seen if f.code == "host-random"}  # by what cannot be made to draw the same
    frozen, told, fails = list[Failure](), set[tuple[str, Frame | None]](), False
    waiting, alone = [every], list[list[tuple[int, Inner]]]()
    while waiting:
        some = waiting.pop(0)
        for numbers in others_of(some):
            other = called_with(caller, numbers, base)
            if other.ended is None:
                break
        if other.ended is not None and any(some is each for each in alone):
            continue
        if other.ended is not None:  # a size perhaps, beside others that a call does take
            fails = fails or len(some) == 1 or some is not every
            waiting += _parted(some) if some is every else [[each] for each in some[:_MOST_ALONE] if len(some) > 1]
            fails = fails or not waiting
            continue
        floats = [each for each in every if each[1].kind is float]
        names = ", ".join(dict.fromkeys(_named(at, given[at][0], inner, some) for at, inner in some))
        for f in differ(caller, base, other):
            if f.code != "stale-input" and f.frame not in drawn and (f.code, f.frame) not in told:
                told.add((f.code, f.frame))
                if f.code == "size-frozen" and some is every and floats != every and not alone:
                    # What has, or comes behind, other sizes cannot be compared: which of them is not by all numbers.
                    alone = [[each] for each in every[:_MOST_ALONE] if len(every) > 1 and each not in floats]
                    waiting += [floats] * bool(floats) + alone
                frozen += _told(caller, replace(f, message=f"{f.message} {OTHER_NUMBERS}{names})"), some, found)
        if some is every:
            for f in left_behind(caller, base, other, [*seen, *frozen]):
                frozen += _told(caller, replace(f, message=f"{f.message} {OTHER_NUMBERS}{names})"), some, found)
            frozen += exchanged_by(caller, base, other, numbers, f"{OTHER_NUMBERS}{names})", [*seen, *frozen])
    found.notes += [TAKES_NO_OTHERS] if fails else []
    return frozen + freed_gradients.problems([*seen, *frozen], caller, base)


def called_with(caller: Caller, numbers: Others, base: Call) -> Call:
    """A call with other numbers at some places; what the host draws stays, beside what is given."""
    if not numbers:
        return caller.call(caller.args, caller.kwargs, drawing=base.number)
    new = [_with(numbers, at, value) for at, value in enumerate((*caller.args, *caller.kwargs.values()))]
    args, kwargs = tuple(new[: len(caller.args)]), zip(caller.kwargs, new[len(caller.args) :], strict=True)
    return caller.call(args, dict(kwargs), drawing=base.number, led=True)


def left_behind(caller: Caller, base: Call, other: Call, seen: list[Failure]) -> list[Failure]:
    """What a next call does otherwise, as one with another number has left it so: a rate that is set at its end."""
    lines = {f.frame for f in (*base.found, *seen)}  # what moves by itself is told there
    found = [f for f in other.found if f.code in _LEFT]  # of optimizers, which are put back
    was = {each.place: each.after for change in base.changes for each in change.entries()}
    left = [each for change in other.changes for each in change.entries() if type(each.after) in AMOUNTS]
    if any(each.place not in was or not same(was[each.place], each.after) for each in left):
        behind = called_with(caller, {}, base)
        found += differences(base.steps, behind.steps, random_drawn=False) if behind.ended is None else []
    return [f for f in found if f.code in _LEFT and f.frame not in lines]


def differ(caller: Caller, base: Call, other: Call) -> list[Failure]:
    """What differs in a call with another number, which tensors are read as well: as ever with the own one."""
    found = differences(base.steps, other.steps, random_drawn=False)
    found += read_apart.returned(base, other, code_of(caller.function))
    if not any(f.code == "stale-input" for f in found):
        return found
    own = called_with(caller, {}, base)
    moved = differences(base.steps, own.steps, random_drawn=False) if own.ended is None else found
    lines = {f.frame for f in moved}
    apart = any(read_apart.APART in f.message for f in found)  # then a backward pass reads other weights, too
    found = [f for f in found if not (apart and f.code == "stale-input" and read_apart.APART not in f.message)]
    picked = (f.code == "stale-input" and f.frame not in lines for f in found)
    return [BY_ID["branch-frozen"].failure(f.message, f.frame) if p else f for f, p in zip(found, picked, strict=True)]


def exchanged_by(
    caller: Caller, base: Call, other: Call, numbers: Others, how: str, seen: list[Failure]
) -> list[Failure]:
    """What a call with other numbers reads that those with the own have exchanged."""
    own, another_way = (lambda: called_with(caller, {}, base)), (lambda: called_with(caller, numbers, base))
    lines = {f.frame for f in (*base.found, *seen)}  # what is told there is said of it
    found = read_otherwise.problems(base, other, own, another_way)
    return [replace(f, message=f"{f.message} {how}") for f in found if f.frame not in lines]


def _with(numbers: Others, at: int, value: Any) -> Any:
    """An argument with other numbers at some places."""
    return with_others_within(value, lambda path, each: numbers.get((at, path), each))


def _parted(every: list[tuple[int, Inner]]) -> list[list[tuple[int, Inner]]]:
    """Numbers of one kind together: those that are no sizes do not end a call."""
    kinds = [[each for each in every if each[1].kind is kind] for kind in (float, bool, int)]
    parts = [part for part in kinds if part]
    return parts if len(parts) > 1 else [[each] for each in every[:_MOST_ALONE] if len(every) > 1]


def _named(at: int, keyword: str, inner: Inner, some: list[tuple[int, Inner]]) -> str:
    name = keyword or f"argument {at + 1}"
    if sum(number == at for number, _ in some) > _MOST_ALONE:
        return f"{name} = others"
    return f"{name}{inner.path} = {inner.value}"


def _told(caller: Caller, failure: Failure, some: list[tuple[int, Inner]], found: Examination) -> list[Failure]:
    """What an object's numbers alone decide is only said, where nothing makes another one: a configuration stays."""
    kinds = {inner.of for _, inner in some}
    if None in kinds or failure.frame is None:
        return [failure]
    if any(_is_made_often(kind, caller.function) for kind in kinds if kind is not None):
        return [failure]
    names = ", ".join(dict.fromkeys(kind.__name__ for kind in kinds if kind is not None))
    found.notes.append(_OF_OBJECT.format(at=failure.frame.label(), names=names))
    return []


def _is_made_often(kind: type, function: Any) -> bool:
    """Whether the file of a function makes objects of a class in a loop, or at several places."""
    inner = getattr(function, "__func__", function)
    if not hasattr(inner, "__code__"):  # a module, or an object that can be called
        inner = getattr(type(inner), "forward", None) or vars(type(inner)).get("__call__")
    code = code_of(inner)
    tree = tree_of(code.co_filename) if code is not None else None
    nodes = [*ast.walk(tree)] if tree is not None else []
    made = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == kind.__name__]
    loops = [n for n in nodes if isinstance(n, (*LOOPS, ast.ListComp, ast.GeneratorExp, ast.DictComp))]
    repeated = {n for loop in loops for n in ast.walk(loop)}
    return len(made) > 1 or any(n in repeated for n in made)


def frozen_names(caller: Caller, found: Examination, base: Call, told: set[tuple[str, Frame | None]]) -> None:
    """Call once more with other numbers in outer variables: candidates for parameters, where nothing is told."""
    _note_words(caller, found, base)
    if not (numbers := caller.state.numbers()):
        return
    held: list[tuple[Holder, Any]] = [(holder, holder.read()) for holder, _ in numbers]
    for holder, value in ((h, v) for h, v in held if isinstance(v, (int, float)) and not isinstance(v, bool)):
        holder.write(another(value))
    try:
        other = caller.call(caller.args, caller.kwargs, led=True)
    finally:
        for holder, value in held:
            holder.write(value)
    if other.ended is not None:
        return
    for failure in differences(base.steps, other.steps, random_drawn=True):
        if failure.code in ("scalar-frozen", "size-frozen", "cpu-scalar-frozen", "branch-frozen") and failure.frame:
            named = [h.name for h, _ in numbers if re.search(rf"\b{re.escape(h.name)}\b", failure.frame.text)]
            names = named or [h.name for h, _ in numbers if (failure.code, failure.frame) not in told]
            what = "decides a branch" if failure.code == "branch-frozen" else "would be frozen"
            text = f"{', '.join(names)} {what} at {failure.frame.label()}"
            found.notes += [f"candidate for a parameter: {text}"] if names else []


def _note_words(caller: Caller, found: Examination, base: Call) -> None:
    """Note what a word among the arguments decides, ``script="latin"``: most are the same in all calls."""
    words = list[Given]()
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        words += islice(with_other_words(caller), _MOST_WORDS)
    for args, kwargs in words:
        other = caller.call(args, kwargs, drawing=base.number, led=True)
        moved = differ(caller, base, other) if other.ended is None else []
        at = next((f.frame for f in moved if f.code in _LEFT and f.frame is not None), None)
        given = zip((*args, *kwargs.values()), (*caller.args, *caller.kwargs.values()), strict=True)
        pairs = [(own, new) for new, own in given if new is not own]
        if at is not None and len(pairs) == 1:
            own, new = pairs[0]
            found.notes.append(_OF_A_WORD.format(own=own, new=new, at=at.label()))
            return
