"""Which statements of a block could be one part of it, that is a graph: those between two that may end it, or ask.

``if energy < limit: return`` stands before what is worth a launch, ``if empty: continue`` in the middle of a round.
What comes behind such a test may be a function that is called where the test lets it. A test that only ends a loop can
wait where nobody sees what the rest of the round has done.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence

from paramgraph_kit.rewrite.source.clock import is_clock
from paramgraph_kit.rewrite.source.edits import COMPOUND, Function, free_names, within
from paramgraph_kit.rewrite.source.moving import STOPS, stored

# The ranks of what is new before one statement: what it tells or is handed, numbers, and what is cut off from it.
KEPT, LENT, CUT = 1, 2, 3
Block = ast.For | ast.While | ast.With | ast.If | Function


def spans(body: Sequence[ast.stmt], tells: Callable[[ast.stmt], bool]) -> list[list[ast.stmt]]:
    """The statements of a block that follow each other, and none of which may end it or goes on by what it asks."""
    found: list[list[ast.stmt]] = [[]]
    for node in body:
        if ends(node) or _asks_a_clock(node) or (isinstance(node, COMPOUND) and tells(node)):
            found.append([])
        else:
            found[-1].append(node)
    return [each for each in found if each]


def _asks_a_clock(node: ast.stmt) -> bool:
    """Whether a statement takes the time, which is that of its place."""
    return any(isinstance(part, ast.Call) and is_clock(part) for part in within(node))


def ends(node: ast.stmt) -> bool:
    """Whether a statement may leave the block that it is in."""
    return any(isinstance(part, STOPS) for part in within(node))


def may_end_later(
    node: ast.stmt,
    later: Sequence[ast.stmt],
    loop: Block,
    function: ast.AST,
    is_pure: Callable[[ast.stmt], bool],
    *,
    renamed: Collection[str] = (),
) -> bool:
    """Whether ``if c: break`` may wait for the rest of a round: nobody else sees what that computes.

    Args:
        later: what the round does after it.
        is_pure: whether a statement gives names what it computes, and does nothing else.
        renamed: names that the rest has others for.
    """
    if not isinstance(node, ast.If) or node.orelse or not isinstance(loop, (ast.For, ast.While)):
        return False
    every = [part for each in node.body for part in within(each)]
    if not isinstance(node.body[-1], (ast.Break, ast.Return)) or sum(isinstance(part, STOPS) for part in every) != 1:
        return False
    made = stored(later) - {*renamed} | stored(later) & _named(function)
    inside = {id(part) for each in loop.body for part in ast.walk(each)}
    loops = (n for n in ast.walk(function) if isinstance(n, (ast.For, ast.While)) and n is not loop)
    again = any(loop in ast.walk(each) for each in loops)
    after = 0 if again else max(each.end_lineno or 0 for each in loop.body)
    named = [part for part in ast.walk(function) if isinstance(part, ast.Name) and id(part) not in inside]
    outside = {part.id for part in named if part.lineno > after}
    return all(map(is_pure, later)) and not made & (outside | free_names(node) | _named(function))


def _named(function: ast.AST) -> set[str]:
    """Names that are not the function's own, or that others see."""
    kinds = (ast.Global, ast.Nonlocal)
    return {name for node in ast.walk(function) if isinstance(node, kinds) for name in node.names}
