"""Loops over what the host keeps, ``for t in self.seen``, whose entries decide what a step picks: behind the launch."""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place

_HOLDS = (list, tuple, set, dict, deque, OrderedDict, defaultdict)


def over_what_it_keeps(place: Place, names: Iterable[str]) -> str:
    """What to do where the names are those of rounds over a list of the object's: no argument is any of them."""
    node, function = place.statement, place.source.function_of(place.statement)
    loops = [each for each in place.loops() if isinstance(each, ast.For)]
    given = stored([each.target for each in loops])
    asked = {*names} or (names_in(node.iter) & given if isinstance(node, ast.For) else set())
    if not asked or function is None or not asked <= given:
        return ""
    held = [n for n in ast.walk(loops[-1].iter) if isinstance(n, ast.Attribute)]
    path = next((path_of(n) for n in held if type(place.attributes.get(n.attr)) in _HOLDS), "")
    if not path:
        return ""
    return (
        f"{ended_before(function, loops[-1])}: its rounds are what the host has in `{path}` by then, and a graph keeps "
        "those of its capture"
    )


def ended_before(function: Function, loop: ast.stmt) -> str:
    """What is said where a captured part ends ahead of a loop, with what the function has made by then for it."""
    every = (n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    begun = sorted({n.id for n in every if n.lineno < loop.lineno} & names_in(loop))
    needed = f", return what it reads of `{'`, `'.join(begun)}`" if begun else ""
    return (
        f"end what is captured before the loop of line {loop.lineno}{needed}, and do that loop with all after it "
        "behind the launch"
    )
