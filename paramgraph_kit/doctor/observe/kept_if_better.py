"""A name that a line gives a result, or leaves what it has: ``best = loss if loss < low else best``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, TypeGuard

from paramgraph_kit.doctor.explain.syntax import LOOPS, elements_of, last_name, nodes_of, pairs_of, spans, tree_of
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.doctor.observe.held_objects import methods_by_user, reachable
from paramgraph_kit.doctor.observe.kept_choices import is_choice
from paramgraph_kit.doctor.observe.read_later import is_about, is_read_later, statement_at

_PICKS = ("max", "min")
_SAME = ("list", "tuple", "deque", "dict")  # makes another one of the same entries
_PATHS = (ast.Name, ast.Attribute)
_EQUAL = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def may_be(value: ast.expr) -> Iterator[ast.expr]:
    """What an expression is, as it is: itself, either side of a choice, or what the largest is picked from."""
    if isinstance(value, ast.IfExp):
        yield from (*may_be(value.body), *may_be(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (part for each in value.values for part in may_be(each))
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _PICKS:
        yield from (part for each in value.args for part in may_be(each))
    else:
        yield value


def taken_by(node: ast.Assign) -> list[ast.expr]:
    """What else than what it has a line may give its name, where it may leave that, or goes on from it; else none.

    Who asks only whether there is something has that from the first time on: a default.
    """
    target, value = ast.unparse(node.targets[0]), node.value
    parts = [*may_be(value)]
    others: list[ast.expr] = [each for each in parts if isinstance(each, _PATHS) and ast.unparse(each) != target]
    if any(not isinstance(each, _PATHS) and target in map(ast.unparse, _paths_in(each)) for each in parts):
        return others if len(parts) > 1 else []  # total = loss if total is None else total + loss
    asks = value.test if isinstance(value, ast.IfExp) else value.values[0] if isinstance(value, ast.BoolOp) else None
    is_default = asks is not None and ast.unparse(asks) in (target, f"{target} is None", f"{target} is not None")
    return others if any(ast.unparse(each) == target for each in parts) and not is_default else []


def added_to_what_was(node: ast.Assign) -> ast.expr | None:
    """What a line adds to a list, or a dictionary, of which it makes another: ``log = {**log, i: loss}``.

    Also of its last entries alone, ``last = last[-3:] + [loss]``.
    """
    target, value = ast.unparse(node.targets[0]), _whole_of(node.value)
    if isinstance(value, ast.Dict):
        was = [each for key, each in zip(value.keys, value.values, strict=True) if key is None]
        new = [each for key, each in zip(value.keys, value.values, strict=True) if key is not None]
    elif isinstance(value, (ast.List, ast.Tuple)):
        was = [each.value for each in value.elts if isinstance(each, ast.Starred)]
        new = [each for each in value.elts if not isinstance(each, ast.Starred)]
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        sides = [value.left, value.right]
        was = [each for each in sides if not isinstance(each, (ast.List, ast.Tuple))]
        new = [e for each in sides if isinstance(each, (ast.List, ast.Tuple)) for e in each.elts]
    else:
        return None
    return new[0] if len(new) == 1 and target in [ast.unparse(_whole_of(each)) for each in was] else None


def _whole_of(value: ast.expr) -> ast.expr:
    """What a cut, or another list of the same, is of: ``last`` of ``list(last[-3:])``."""
    while True:
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            value = value.value
        elif isinstance(value, ast.Call) and last_name(value.func) in _SAME and value.args:
            value = value.args[0]
        else:
            return value


@lru_cache(256)
def of_round_before(code: CodeType, line: int) -> tuple[ast.Assign, ...]:
    """Lines behind a replay that keep a result by a name which is read between it and them: it is of the round before.

    Who gives the name the same ahead of the replay, too, means what is there now.
    """
    nodes = [*nodes_of(code)]
    now = statement_at(nodes, line)
    ahead = now.end_lineno or line if now is not None else line
    assigns = [n for n in nodes if isinstance(n, ast.Assign)]
    parents = {child: parent for parent in nodes for child in ast.iter_child_nodes(parent)}
    found = []
    rounds = [n for n in nodes if isinstance(n, LOOPS) and spans(n, line)]
    for node in (n for n in assigns if n.lineno > ahead and len(n.targets) == 1):
        if taken_by(node) and any(spans(each, node.lineno) for each in rounds):
            found.append(node)
            continue
        if not isinstance(node.targets[0], _PATHS) or not isinstance(node.value, _PATHS):
            continue
        path, kept = ast.unparse(node.targets[0]), ast.unparse(node.value)
        named = [n for n in nodes if isinstance(n, _PATHS) and ast.unparse(n) == path]
        between = [n for n in named if ahead < n.lineno < node.lineno]
        read = [n for n in between if not isinstance(n, ast.Name) or not is_about(n, parents)]
        others = [n for n in assigns if n is not node and {*elements_of(n.targets[0])} & {*named}]
        pairs = [pair for n in others for pair in zip(elements_of(n.targets[0]), elements_of(n.value), strict=False)]
        same = any(ast.unparse(part) == kept for target, part in pairs if target in named)
        if read and not same and all(isinstance(n.ctx, ast.Load) for n in between):
            found.append(node)
    return tuple(found)


def kept_now(
    frames: list[FrameType], holds: Callable[[Any], bool]
) -> Iterator[tuple[CodeType, ast.Assign, str, ast.expr]]:
    """Lines that keep what the graph which is replayed now writes over, with what they give it to, and what that is.

    Args:
        frames: of the functions that run now, the innermost first.
        holds: whether something has memory that the graph writes.
    """
    for frame in frames[1:]:
        for node, target, part in kept_in_some_rounds(frame.f_code, frame.f_lineno):
            if holds(path_value(target, frame.f_locals, frame.f_globals)) and _is_read_on(frame, node, target):
                yield frame.f_code, node, ast.unparse(target), part
    for owner in reachable(value for frame in frames for value in frame.f_locals.values()):
        kind: Any = type(owner)
        for code, node, target, part in _kept_by_methods(kind):
            if holds(attributes_of(owner).get(target.attr)):
                yield code, node, ast.unparse(target), part


@lru_cache(256)
def _kept_by_methods(kind: type) -> tuple[tuple[CodeType, ast.Assign, ast.Attribute, ast.expr], ...]:
    """Lines of an object's methods that keep what they are given: in some rounds, or until it is read in the next."""
    found = []
    for code in (each.__code__ for each in methods_by_user(kind) if each.__name__ != "__init__"):
        own, given = code.co_varnames[:1], code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        nodes = [*nodes_of(code)]
        assigns = [n for n in nodes if isinstance(n, ast.Assign)]
        if any(isinstance(n, ast.Call) and last_name(n.func) == "replay" for n in nodes):
            continue  # what comes ahead of it and what behind is looked at by itself
        for node in assigns:
            for target, value in pairs_of(node):
                if not isinstance(target, ast.Attribute) or ast.unparse(target.value) not in own:
                    continue
                taken = taken_by(node) if target is node.targets[0] else []
                parts = [each for each in (taken or _parts(value)) if isinstance(each, ast.Name) and each.id in given]
                if parts and (taken or _is_kept_on(code, nodes, assigns, node, target)):
                    found.append((code, node, target, parts[0]))
    return tuple(found)


def _is_kept_on(
    code: CodeType, nodes: list[ast.AST], assigns: list[ast.Assign], node: ast.Assign, target: ast.Attribute
) -> bool:
    path = ast.unparse(target)
    parents = {child: parent for parent in nodes for child in ast.iter_child_nodes(parent)}
    named = [
        n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and ast.unparse(n) == path
    ]
    read = [n for n in named if not isinstance(parents.get(n), ast.Compare)]
    if any(n.lineno < node.lineno and not is_about(n, parents) for n in read):
        return True  # of the round before
    tests = [
        n for n in nodes if isinstance(n, ast.If) and any(each is node for part in n.body for each in ast.walk(part))
    ]
    if any(_goes_on(each, path) for each in tests):
        return True
    return any(is_choice(n.test, assigns, n, code) for n in tests) and is_read_elsewhere(code, node, target)


def _goes_on(test: ast.If, path: str) -> bool:
    """Whether one way begins with something, and the other adds to it: ``if t is None: t = x`` and ``else: t += x``."""
    for node in (n for part in test.orelse for n in ast.walk(part)):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == path:
            return True
        if isinstance(node, ast.Assign) and path in map(ast.unparse, node.targets):
            return path in map(ast.unparse, _paths_in(node.value))
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr[-1:] == "_"
        if is_call and ast.unparse(node.func.value) == path:  # type: ignore[attr-defined]
            return True
    return False


def _paths_in(node: ast.AST) -> Iterator[ast.expr]:
    return (n for n in ast.walk(node) if isinstance(n, _PATHS))


def _is_read_on(frame: FrameType, node: ast.Assign, target: ast.expr) -> bool:
    if isinstance(target, ast.Name):
        return is_read_later([*nodes_of(frame.f_code)], target.id, frame.f_lineno)
    return is_read_elsewhere(frame.f_code, node, target)


@lru_cache(256)
def kept_in_some_rounds(code: CodeType, line: int) -> tuple[tuple[ast.Assign, ast.expr, ast.expr], ...]:
    """Lines that keep the result of what runs at a line in those rounds of its loop alone that a test is for.

    Each with what it gives it to, and the result there. A plain name of one thing is looked at elsewhere.
    """
    nodes, found = [*nodes_of(code)], list[tuple[ast.Assign, ast.expr, ast.expr]]()
    assigns = [n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1]
    running = {ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call) and spans(n, line)}
    made = [n for n in assigns if isinstance(n.value, ast.Call) and ast.unparse(n.value.func) in running]
    results = {each.id for n in made for each in elements_of(n.targets[0]) if isinstance(each, ast.Name)}
    rounds = [n for n in nodes if isinstance(n, LOOPS) and spans(n, line)]
    tests = [n for each in rounds for n in ast.walk(each) if isinstance(n, ast.If) and n.lineno > line]
    counted = {n.id for each in rounds if isinstance(each, ast.For) for n in elements_of(each.target) if _is_name(n)}
    for test in tests:
        chosen = is_choice(test.test, assigns, test, code) or _picks(test.test, counted)
        for node in (n for part in test.body for n in ast.walk(part) if isinstance(n, ast.Assign)):
            for target, value in pairs_of(node):
                parts = [*_parts(value)]
                plain = isinstance(target, ast.Name) and target is node.targets[0]
                is_path = isinstance(target, (ast.Name, ast.Attribute)) and not plain
                held: list[ast.expr] = [part for part in parts if _is_name(part) and part.id in results]
                held += [part for part in parts if isinstance(part, ast.Attribute) and part.attr == "grad"]
                goes_on = _goes_on(test, ast.unparse(target))
                if held and ((is_path and chosen) or goes_on):
                    found.append((node, target, held[0]))
    return tuple(found)


def is_read_elsewhere(code: CodeType, node: ast.Assign, path: ast.expr) -> bool:
    """Whether a line of the file reads an attribute, and not in the branch that has just set it."""
    tree, nodes = tree_of(code.co_filename), [*nodes_of(code)]
    branches = [n for n in nodes if isinstance(n, ast.If) and any(each is node for each in ast.walk(n))]
    inside = {id(n) for each in branches[-1:] for part in each.body for n in ast.walk(part)}
    reads = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute)) if tree is not None else ()
    lines = {
        (n.lineno, n.col_offset) for each in nodes if id(each) in inside for n in [each] if isinstance(n, ast.expr)
    }
    return any(
        isinstance(n.ctx, ast.Load) and n.attr == last_name(path) and (n.lineno, n.col_offset) not in lines
        for n in reads
    )


def _is_name(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _picks(test: ast.expr, names: set[str]) -> bool:
    """Whether a test is for some rounds by what each has for itself: ``if step == 10:``."""
    compared = [n for n in ast.walk(test) if isinstance(n, ast.Compare) and all(isinstance(op, _EQUAL) for op in n.ops)]
    return any(_is_name(part) and part.id in names for n in compared for part in (n.left, *n.comparators))


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.Dict):
        yield from value.values
    elif isinstance(value, (ast.Tuple, ast.List)):
        yield from value.elts
    else:
        yield value
