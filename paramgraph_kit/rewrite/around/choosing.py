"""Which statements of a function go behind its launch together, with what depends on them and what they need."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence

from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.source.clock import is_clock
from paramgraph_kit.rewrite.source.edits import Function, free_names, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, body_of, is_closed, is_movable, stored
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.writes import READS, paths, touches, written


def choose(
    function: Function,
    wanted: Iterable[ast.stmt],
    tensors: set[str],
    is_host: Callable[[ast.expr], bool],
    graded: Collection[str] = (),
) -> list[ast.stmt]:
    """Those of some statements that can all be moved together, with what depends on them.

    ``tensors``: the local names that hold one when the function returns, which alone can be handed over; ``graded``:
    those of them that need gradients.
    """
    order, wished = list(body_of(function)), set(wanted)
    order = order[: early_end(order)]  # what an early return skips is not done behind each launch
    here = locals_of(function) - set(arguments_of(function)) - tensors
    chosen = [node for node in order if node in wished and is_movable(node, graded)]
    for node in [node for node in order if node not in chosen]:
        chosen += [node] if _goes_with(node, chosen, order, function, is_host) else []
    along = {*chosen} - wished
    while more := [node for node in order if node not in chosen and _is_for(node, function, order, chosen, here)]:
        chosen += more
    chosen.sort(key=order.index)
    while True:
        kept = [
            node
            for node in chosen
            if not _is_needed(function, node, chosen) and not names_in(node) & here - stored(chosen)
        ]
        # What stays takes along what was to go with it alone: a step of an optimizer's is the graph's own then.
        others = [[one for one in kept if one is not node] for node in kept]
        kept = [
            n
            for n, more in zip(kept, others, strict=True)
            if n not in along or _goes_with(n, more, order, function, is_host)
        ]
        if len(kept) == len(chosen):
            return kept
        chosen = kept


def _goes_with(
    node: ast.stmt,
    chosen: Sequence[ast.stmt],
    order: Sequence[ast.stmt],
    function: Function,
    is_host: Callable[[ast.expr], bool],
) -> bool:
    """Whether a statement that nobody asked for moves with some that do."""
    needing = isinstance(node, (ast.If, ast.Expr)) and is_movable(node)
    if needing and any(_needs(node, one) for one in chosen if order.index(one) < order.index(node)):
        return True
    if _keeps(node, function, is_host) and any(_needs(node, one) for one in chosen if one is not node):
        return True  # what the host keeps of what moves, although these calls have not changed it
    # Or it would be left with what was before.
    return _is_own(node, function) and any(_needs(node, one) for one in _computed(chosen, order, node))


def early_end(order: list[ast.stmt]) -> int:
    """The number of the first statement that may leave a function, and is not its last."""
    leaving = (n for n, node in enumerate(order[:-1]) if any(isinstance(part, ast.Return) for part in within(node)))
    return next(leaving, len(order))


def _keeps(node: ast.stmt, function: Function, is_host: Callable[[ast.expr], bool]) -> bool:
    """Whether a statement computes on the host alone, and keeps that beyond the function."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)) or not is_host(node.value):
        return False
    names = set(written(node))
    return bool(names) and not names & locals_of(function)


def _computed(chosen: Sequence[ast.stmt], order: Sequence[ast.stmt], node: ast.stmt) -> list[ast.stmt]:
    """Those of some statements before another one that are no loops, which may work on the device for it."""
    return [one for one in chosen if one in order[: order.index(node)] and not isinstance(one, ast.For)]


def _is_own(node: ast.stmt, function: Function) -> bool:
    """Whether a statement gives something to names of the function's own alone."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return (
        bool(targets)
        and is_movable(node)
        and all(isinstance(n, ast.Name) for n in targets)
        and stored(targets) <= locals_of(function)
    )


def _is_for(
    node: ast.stmt, function: Function, order: Sequence[ast.stmt], chosen: Sequence[ast.stmt], here: set[str]
) -> bool:
    """Whether a statement looks up what only statements that move read, and would find the same behind the rest.

    So does a clock that is asked when all else is done. ``here``: the names that cannot be handed over.
    """
    if not isinstance(node, ast.Assign) or not _is_own(node, function) or not stored([node]) <= here:
        return False
    own = locals_of(function) - set(arguments_of(function))
    behind = [one for one in order if order.index(one) > order.index(node)]
    stay = [one for one in behind if one not in chosen]
    ends = all(isinstance(one, ast.Return) for one in stay)
    calls = [n for n in ast.walk(node.value) if isinstance(n, ast.Call)]
    if any(not (ends and is_clock(call)) for call in calls) or names_in(node.value) & own - _times(order):
        return False
    if not any(names_in(one) & stored([node]) for one in chosen if one in behind):
        return False
    looked_up = {path for path in paths(node.value) if path}
    changed = any(touches(a, b) for one in stay for a in written(one) for b in looked_up)
    read = any((names_in(one) | stored([one])) & stored([node]) for one in stay)  # ``x += [y]`` reads, too
    return not changed and not read


def _times(order: Sequence[ast.stmt]) -> set[str]:
    """Names that are given what a clock tells."""
    asked = (n for n in order if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and is_clock(n.value))
    return {name for node in asked for name in stored([node])}


def _needs(node: ast.stmt, before: ast.stmt) -> bool:
    return any(touches(a, b) for a in written(before) for b in paths(node))


def _is_needed(function: Function, node: ast.stmt, moved: list[ast.stmt]) -> bool:
    """Whether a statement that stays behind reads what ``node`` writes, or changes what it reads."""
    order, reads = list(body_of(function)), free_names(node) & locals_of(function)
    fills = any(_fills_given(part) for part in within(node))
    zeroes = "zero_grad" in _methods(node) and "backward" not in _methods(node)
    for later in order[order.index(node) + 1 :]:
        if later in moved:
            continue
        if fills and any(isinstance(n, ast.Call) and called(n) not in READS for n in within(later)):
            return True  # the gradients that a step takes are clipped before it
        if zeroes and not {"backward", "step", "grad"}.isdisjoint(_methods(later)):
            return True  # these would be gone behind it
        if stored([later]) & reads or _needs(later, node):
            return True
    return False


def _methods(node: ast.AST) -> set[str]:
    calls = (n.func for n in within(node) if isinstance(n, ast.Call))
    return {func.attr for func in calls if isinstance(func, ast.Attribute)}


def _fills_given(node: ast.AST) -> bool:
    """``nn.utils.clip_grad_norm_(parameters, 1.0)``, which writes what it is given, and ``p.grad.mul_(0.5)``."""
    if not isinstance(node, ast.Call) or not called(node).endswith("_") or called(node).startswith("_"):
        return False
    if isinstance(node.func, ast.Attribute) and "grad" in path_of(node.func.value).split("."):
        return True
    return isinstance(node.func, ast.Name) or path_of(node.func).partition(".")[0] in ("torch", "nn", "F")


def rates_behind(function: Function) -> list[ast.stmt]:
    """Statements that give an optimizer another rate once it has stepped: the next step takes it."""
    order, found = list(body_of(function)), []
    steps = [{optimizers.stepped(part) for part in within(node) if isinstance(part, ast.stmt)} for node in order]
    for number, node in enumerate(order):
        names = optimizers.rated([node])
        before, behind = set[str]().union(*steps[:number]), set[str]().union(*steps[number:])
        if names and is_closed(node) and all(name in before and name not in behind for name in names):
            found.append(node)
    return found
