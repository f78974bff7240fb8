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
from paramgraph_kit.rewrite.source.moving import STOPS, is_backward, stored
from paramgraph_kit.rewrite.source.place import called

# The ranks of what is new before one statement: what it tells or is handed, numbers, and what is cut off from it.
KEPT, LENT, CUT = 1, 2, 3
Block = ast.For | ast.While | ast.With | ast.If | Function
_ZEROES = "zero_grad"
_OF_GRADIENTS = frozenset((_ZEROES, "backward", "clip_grad_norm_", "clip_grad_value_"))


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


def may_train_before(node: ast.stmt, later: Sequence[ast.stmt], loop: Block, function: ast.AST) -> bool:
    """Whether ``if torch.isnan(loss): continue`` may wait for a backward pass: each round begins with new gradients.

    What a round leaves of them nobody builds on, as one that goes on leaves some, too.
    """
    if not isinstance(node, ast.If) or node.orelse or not isinstance(loop, (ast.For, ast.While)):
        return False
    inside = {id(part) for part in ast.walk(node)}
    stops = [part for each in node.body for part in within(each) if isinstance(part, STOPS)]
    if stops != [node.body[-1]] or any(map(_asks_for_gradients, ast.walk(node))):
        return False
    if not all(_call_of(each) in _OF_GRADIENTS for each in later):
        return False
    body = list(loop.body)
    zeroed = next((n for n, each in enumerate(body) if _call_of(each) == _ZEROES), len(body))
    passes = [n for n, each in enumerate(body) if any(map(is_backward, ast.walk(each)))]
    if not any(map(is_backward, (n for each in later for n in ast.walk(each)))) or zeroed > min(passes):
        return False
    behind = {id(part) for each in body[body.index(node) + 1 :] for part in ast.walk(each)} - inside
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and id(n) not in behind}
    return not stored(later) & (read | _named(function))


def _asks_for_gradients(node: ast.AST) -> bool:
    """``p.grad``, ``grad_norm(model)``: all but ``opt.zero_grad()``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "grad" in name and name != _ZEROES


def _call_of(node: ast.stmt) -> str:
    """The last name of the call that a statement is, or keeps the result of."""
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    return called(value) if isinstance(value, ast.Call) else ""


def _named(function: ast.AST) -> set[str]:
    """Names that are not the function's own, or that others see."""
    kinds = (ast.Global, ast.Nonlocal)
    return {name for node in ast.walk(function) if isinstance(node, kinds) for name in node.names}
