"""Numbers to try as arguments where nothing that is asked of them can be followed: ``date(2024, 1, day).weekday()``.

Those that the lines of the program name, or its tables have, and some that lie far off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import pairwise
from types import FunctionType
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.observe.held import cells_of, is_a
from paramgraph_kit.doctor.observe.near_numbers import Others

FAR = (37, 1000)  # from the own, whatever time that takes
_STEPS = (
    *range(2, 17),
    *(19, 23, 24, 29, 31, 43, 50, 60, 90, 100, 128, 150, 180, 200, 250, 255, 256, 300, 340, 365, 400, 512, 5000),
)
_PARTS = (0.0, 0.5, 2.0, 0.1, 0.9, 10.0, 0.25, 0.75, 100.0)
_MOST_NAMED, _MOST_ENTRIES = 24, 256
_LARGEST = 1e9
_DIGITS = re.compile(r"[0-9a-f]{1,4}")


def further(plain: Others, functions: Iterable[FunctionType]) -> Iterator[tuple[bool, Others]]:
    """Numbers for some arguments, each with whether it is to be tried in any case."""
    for far in FAR:
        yield True, {key: type(value)(value + far) for key, value in plain.items()}
    named = [*dict.fromkeys(_named(functions))][:_MOST_NAMED]
    whole = {key: value for key, value in plain.items() if type(value) is int}
    fractions = {key: value for key, value in plain.items() if type(value) is float}
    for number in named:
        for some, kind in ((whole, int), (fractions, float)):
            others = {key: kind(number) for key, value in some.items() if number != value}
            if others and (kind is float or number == int(number)):
                yield False, others
    between = sorted(each for each in named if type(each) is float)
    for low, high in pairwise(between) if fractions else ():
        yield False, dict.fromkeys(fractions, (low + high) / 2)
    for step in _STEPS if whole else ():
        yield False, {key: value + step for key, value in whole.items()}
    for part in _PARTS if fractions else ():
        yield False, {key: value * part for key, value in fractions.items()}


def _named(functions: Iterable[FunctionType]) -> Iterator[int | float]:
    """Numbers that lines name, keys and last places of tables that they can name, and what those hold."""
    for function in functions:
        code = function.__code__
        yield from _plain(code.co_consts)
        cells = {name: cell.cell_contents for name, cell in cells_of(function).items()}
        names: Mapping[str, Any] = {**function.__globals__, **cells}
        held = [names[n] for n in (*code.co_names, *code.co_freevars) if n in names]
        owned = [vars(each) for each in held if hasattr(each, "__dict__") and not is_a(each, (type, FunctionType))]
        held += [own[n] for own in owned for n in code.co_names if n in own]
        for each in held:
            if is_a(each, (dict, list, tuple, set, frozenset, np.ndarray, torch.Tensor)):
                yield from _within(each)


def _within(table: Any) -> Iterator[int | float]:
    if isinstance(table, torch.Tensor):
        if table.device.type != "cpu" or table.numel() > _MOST_ENTRIES or table.is_floating_point():
            yield from (table.shape[0] - 1, table.shape[0] // 2) if table.dim() and table.device.type == "cpu" else ()
            return
        table = table.detach().numpy()
    if isinstance(table, np.ndarray):
        yield from _plain(table.ravel().tolist()) if table.size <= _MOST_ENTRIES and table.dtype.kind in "iuf" else ()
    elif isinstance(table, Sized) and len(table) <= _MOST_ENTRIES:
        yield from _plain(table)  # type: ignore[arg-type]
    if isinstance(table, (list, tuple)) or (isinstance(table, np.ndarray) and table.ndim):
        yield from (len(table) - 1, len(table) // 2)


def _plain(values: Iterable[Any]) -> Iterator[int | float]:
    for each in values:
        if type(each) is tuple:
            yield from _plain(each)
        elif type(each) in (int, float) and abs(each) < _LARGEST:
            yield each
        elif type(each) is str and _DIGITS.fullmatch(each):  # of ``"%d" % step``, or ``hex(step)``
            yield from (int(each, base) for base in (10, 16) if base > 10 or each.isdecimal())
