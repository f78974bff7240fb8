"""Positions of the host's as tensors that live on: one plan for all lines that use them."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from paramgraph_kit.rewrite.caches import places
from paramgraph_kit.rewrite.caches.growths import ATTENDS, MODULE, Key
from paramgraph_kit.rewrite.caches.places import CannotError, Texts
from paramgraph_kit.rewrite.caches.prefixes import read_at_the_end
from paramgraph_kit.rewrite.caches.rooms import Masks, without
from paramgraph_kit.rewrite.caches.tracked import Tracking
from paramgraph_kit.rewrite.caches.untried import refuse, tried
from paramgraph_kit.rewrite.counting import advance, counted
from paramgraph_kit.rewrite.proving.proof import Arguments, Around, Prover
from paramgraph_kit.rewrite.source.edits import Edit, Source
from paramgraph_kit.rewrite.source.place import Form
from paramgraph_kit.trace.model import Failure

Number = tuple[int | str, str]  # where among the arguments, and under which name
WEIGHED = ("softmax", ATTENDS, MODULE)
CODES = advance.FROZEN | {"stale-input", "tensor-literal", "copy-to-gpu", "cpu-scalar-frozen", "output-alias"}


def track(
    prover: Prover,
    sources: Mapping[str, Source],
    functions: Sequence[types.FunctionType],
    arguments: Sequence[Number] = (),
) -> tuple[list[counted.Counter], Tracking] | None:
    """Where a few steps use the numbers that they move as places; None where they do not, or cannot be followed.

    ``arguments`` are numbers that the function is given, each of which is followed as well: by -1, -2, ...
    """
    found = [each for each in counted.counters(prover) if not each.real] + counted.listed(prover)
    tracking = Tracking(sources)
    if not found and not arguments:
        return None
    prover = prover.from_now()
    if arguments:
        prover = counting(prover, arguments, lambda value, n: tracking.number(value, -1 - n))
    try:
        limits = _limits(functions, tracking)
        with tried(tracking) as ran, _followed(found, tracking), limits, tracking:
            prover.from_now().eager(Around(before=lambda _: _begin(found, tracking)))
    except Exception:
        return None
    refuse(tracking, ran)
    used = [each for number, each in enumerate(found) if number in tracking.used]
    return (used, tracking) if tracking.used and (tracking.indexes or tracking.makers) else None


def numbers(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]) -> list[Number]:
    """The whole numbers that a function is given, where they are given, and under which names."""
    found: list[Number] = [(k, names[k]) for k, each in enumerate(args[: len(names)]) if type(each) is int]
    return found + [(name, name) for name, each in kwargs.items() if type(each) is int]


def counting(prover: Prover, arguments: Sequence[Number], made: Callable[[int, int], Any]) -> Prover:
    """The same steps with arguments that are one more in each; ``made`` makes what is given of a number."""

    def change(i: int, inputs: Arguments) -> Arguments:
        args, kwargs = list(inputs[0]), dict(inputs[1])
        for number, (at, _) in enumerate(arguments):
            held: Any = args if isinstance(at, int) else kwargs
            held[at] = made(int(held[at]) + i, number)
        return tuple(args), kwargs

    return prover.given(change)


@contextmanager
def _followed(found: Sequence[counted.Counter], tracking: Tracking) -> Iterator[None]:
    for number, counter in enumerate(found):
        plain = counter.value
        given = [tracking.number(n, number) for n in plain] if isinstance(plain, list) else None
        counter.put(tracking.number(int(plain), number) if given is None else given)
    try:
        yield
    finally:
        for counter in found:
            counter.put(counter.value)


def _begin(found: Sequence[counted.Counter], tracking: Tracking) -> None:
    """A step begins; a number that the one before has begun anew, ``pos = 0``, is followed as well."""
    for number, counter in enumerate(found):
        if type(value := counter.held()) is int:
            counter.put(tracking.number(value, number))
        elif isinstance(value, list) and any(type(each) is int for each in value):
            counter.put([tracking.number(each, number) for each in value])
    tracking.begin()


@contextmanager
def _limits(functions: Sequence[types.FunctionType], tracking: Tracking) -> Iterator[None]:
    """``min`` and ``max`` are those of positions in the modules of these functions, where they are Python's own."""
    own: dict[str, Callable[..., Any]] = {"min": tracking.limited(min), "max": tracking.limited(max)}
    spaces = {id(each.__globals__): each.__globals__ for each in functions}
    made = [(space, name) for space in spaces.values() for name in own if name not in space]
    for space, name in made:
        space[name] = own[name]
    try:
        yield
    finally:
        for space, name in made:
            del space[name]


def keep(
    used: Sequence[counted.Counter],
    tracking: Tracking,
    failures: Sequence[tuple[Failure, Source, ast.stmt]],
    ran: Callable[[Source], Sequence[ast.stmt]],
    device: str,
    tensors: Mapping[str, Form],
    *,
    prefixes: bool = False,
) -> advance.Kept | None:
    """The positions as tensors, with all lines that use them; None where one of these cannot be written so.

    ``prefixes``: of parts that would be left, those are read as a whole of which only the last place counts.
    """
    keys = [*tracking.indexes, *tracking.makers, *tracking.growths.parts]
    keys += [need.chain[0] for need in tracking.growths.needs.values()]
    files = {key.file for key in keys}
    if len(files) != 1:
        return None
    source = tracking.sources[files.pop()]
    counted = (n for top in ran(source) for n in ast.walk(top) if isinstance(n, ast.AugAssign))
    tracking.falls = any(isinstance(n.op, ast.Sub) and advance.is_writing(n, used) for n in counted)
    written = _written(source, tracking, without(tracking, ()), prefixes)
    if written is None:
        return None
    texts, own = written
    edits = advance.edits_of(source, used, device, ran(source), tensors)
    if edits is None:
        return None
    edits = [each for each in edits if not any(each.overlaps(one) or _within(each, one) for one in own)]
    touched = set(texts.new) | set(texts.around)
    mended = [f for f, where, node in failures if where is source and _is_mended(f, node, touched, used)]
    names = ", ".join(dict.fromkeys(f"`{each.name}`" for each in used))
    most = max((each.value for each in used if isinstance(each.value, int)), default=0)
    sizes = sorted({size for each in tracking.indexes.values() for size in each.shape if size > most})
    told = f"{names} lives on in a tensor: where anything else sets it, `.fill_(...)` does" if used else ""
    if prefixes:
        told += "; what lies behind a prefix changes nothing in it, as far as these steps show"
    if used and _may_be_empty(used, tracking):
        told += "; a softmax over nothing is no number any more, so a part needs one place before it is read"
    if used and any(need.kind in WEIGHED for need in tracking.growths.needs.values()):
        told += "; what lies behind a part's end has to be finite, for it is weighed with 0"
    for line in sorted(each.branch.lineno for each in tracking.apart.values() if not each.parts & texts.left):
        told += f"; the branch of line {line} was not tried, and is given what is written, as before"
    if used and any(index.stored and index.widths for index in tracking.indexes.values()):
        told += "; a place behind a buffer's end is an error on the device, where a slice of the host's is empty"
    return advance.Kept(source, list(used), [*edits, *own], mended, rates=False, told=told, sizes=sizes)


def _may_be_empty(used: Sequence[counted.Counter], tracking: Tracking) -> bool:
    """Whether a part that is weighed has no place where its counter begins with 0, although these steps show some."""
    begun = min((int(each.value) for each in used if not isinstance(each.value, list)), default=0)
    growths = tracking.growths
    weighed = {key for need in growths.needs.values() if need.kind in WEIGHED for key in need.parts}
    return begun > 0 and any(growths.parts[key].least <= begun for key in weighed)


def _written(
    source: Source, tracking: Tracking, left: frozenset[Key], prefixes: bool
) -> tuple[Texts, list[Edit]] | None:
    """All lines that can be written with tensors for places; parts for which that is not so stay as they are."""
    texts = Texts(source)
    texts.falls = tracking.falls
    masks, more = Masks(texts, tracking, left), list[Edit]()
    try:
        places.numbers(texts, tracking)
        places.choices(texts, tracking)
        places.makers(texts, tracking)
        whole = read_at_the_end(texts, tracking, left, more) if prefixes else frozenset[Key]()
        if prefixes and not whole:
            return None
        places.indexes(texts, tracking, left - whole)
        masks.make()
        texts.left = left
        return texts, [*texts.edits(), *masks.edits, *more]
    except CannotError as error:
        others = without(tracking, left | error.parts)
        return _written(source, tracking, others, prefixes) if others > left else None


def _within(inner: Edit, outer: Edit) -> bool:
    """Whether an edit that puts something in lies where another one writes anew."""
    begin, end = (outer.line, outer.column), (outer.end_line, outer.end_column)
    return begin < end and begin <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= end


def _is_mended(failure: Failure, node: ast.stmt, touched: set[ast.AST], used: Sequence[counted.Counter]) -> bool:
    if failure.code == "host-counter":
        return advance.is_writing(node, used)
    return failure.code in CODES and any(part in touched for part in ast.walk(node))
