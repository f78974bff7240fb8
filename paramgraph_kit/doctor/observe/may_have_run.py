"""Which functions of the user's may have written something: those that ran, those that they name, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

from paramgraph_kit.doctor.observe.source_lines import MayHaveRun, in_order


def may_have_run(ran: set[CodeType], functions: Iterable[FunctionType]) -> MayHaveRun:
    """What ran on the device's behalf comes first, then what it names, also through one another, then the rest.

    ``buffer.update(i, p)`` computes nothing on the device, and nobody has seen it run; ``buffer.add`` has not.
    """
    found = in_order(ran)
    others = [f.__code__ for f in functions if f.__name__ != "__init__" and f.__code__ not in ran]
    named, names = set[CodeType](), {name for code in found for name in _names_of(code)}
    while more := {code for code in others if code.co_name in names} - named:
        named |= more
        names |= {name for code in more for name in _names_of(code)}
    return MayHaveRun(found + sorted(others, key=lambda code: code not in named), {*found, *named})


def _names_of(code: CodeType) -> Iterator[str]:
    """What a function names, also in a comprehension or a ``lambda`` of its own."""
    yield from (*code.co_names, *code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_of(inner)
