"""Advice for numbers among the arguments: which of them it is, by its name, and that each value has a graph."""

from __future__ import annotations

import ast
import re

from paramgraph_kit.doctor.observe.examine import OTHER_NUMBERS
from paramgraph_kit.rewrite.source.edits import Function, is_method, names_in, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place

_GIVEN = re.compile(r"(?:argument (\d+)|(\w+)) = ")


def of_an_argument(place: Place) -> str:
    """``beta**0.5 * noise`` with ``beta = betas[t].item()``: `t` decides it, and nothing else has to be given."""
    if OTHER_NUMBERS not in place.failure.message:
        return ""
    names = _deciding(place, _named(place))
    if not names:
        return ""
    kind = "numbers among the arguments, decide" if len(names) > 1 else "a number among the arguments, decides"
    return (
        f"`{'`, `'.join(names)}`, {kind} this: the line stays as it is; keep a graph for each value that comes, "
        f"`graphs[{', '.join(names)}]`, captured when it first comes; where it is always the same, do nothing"
    )


def _named(place: Place) -> list[str]:
    """The names, in the function that is captured, of the numbers of which others were tried."""
    entry = next(
        (n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry and place.entry),
        None,
    )
    given = place.failure.message.rpartition(OTHER_NUMBERS)[2]
    positional = arguments_of(entry)[is_method(place.source, entry) :] if entry is not None else []
    names = []
    for at, keyword in _GIVEN.findall(given):
        if keyword:
            names.append(keyword)
        elif int(at) <= len(positional):
            names.append(positional[int(at) - 1])
    return names


def _deciding(place: Place, names: list[str]) -> list[str]:
    """Those of which something that the line reads is made, where its function tells; else all."""
    function = place.source.function_of(place.statement)
    if function is None or function.name != place.entry or len(names) < 2:
        return names
    read = names_in(place.statement)
    makes = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    made = [n for part in function.body for n in within(part) if isinstance(n, makes) and n.value is not None]
    for _ in made:  # back to what the line's numbers are made of
        read |= {name for n in made if stored([n]) & read and n.value is not None for name in names_in(n.value)}
    return [name for name in names if name in read] or names
