"""Numbers that a function is given and a capture of its own reads: every replay has those of the first call."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure, Frame

_GIVEN = " is given to a capture of its own"  # in a message


def of_the_same_lines(told: Collection[Failure], every: Iterable[Failure]) -> Iterator[Failure]:
    """Further numbers that a line gives its capture, where one of them is told: a problem a line is kept else."""
    said = {f.message for f in told if _GIVEN in f.message}
    lines = {(f.code, f.frame) for f in told if _GIVEN in f.message}
    for failure in every:
        if _GIVEN in failure.message and failure.message not in said and (failure.code, failure.frame) in lines:
            said.add(failure.message)
            yield failure


def read_in_captures(
    codes: Iterable[CodeType], given: Mapping[str, Any], kinds: tuple[type, ...] = (int, float)
) -> Iterator[tuple[str, Frame]]:
    """Each number of the call that a function takes by the same name and reads in ``with ...graph(g):``."""
    numbers = {name for name, value in given.items() if type(value) in kinds}
    for code in codes:
        own = numbers & set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        if not own:
            continue
        for block in captured_in(code):
            for part in (n for top in block for n in ast.walk(top)):
                if isinstance(part, ast.Name) and part.id in own and isinstance(part.ctx, ast.Load):
                    own.discard(part.id)
                    yield part.id, frame_at(code, part.lineno)
