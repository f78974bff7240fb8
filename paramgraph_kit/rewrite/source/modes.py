"""What is set of modules for good, and what a graph was captured with: whether they train, and which parameters do."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.rewrite.source.edits import Function, locals_of, path_of, within
from paramgraph_kit.rewrite.source.moving import is_backward
from paramgraph_kit.rewrite.source.place import called

TRAINING, GRADED = "training", "requires_grad"
NAMES = (TRAINING, GRADED)
SET = (
    "`{text}` runs behind a launch, and a graph keeps what it was captured with: capture the step again "
    "right behind that line, once it has run as it is there"
)
AROUND = (
    "what runs around the round sets `{name}` of modules for good, and its graph keeps what it was captured with: "
    "capture the round again right behind that line, once one has run as it is there"
)


def set_for_good(
    inside: Collection[Function], beside: Collection[Function], ahead: Collection[ast.stmt] = ()
) -> tuple[str, ast.AST | None]:
    """``net.eval()`` and ``p.requires_grad_(False)`` that nothing takes back: what is set, and where; or "" and None.

    Args:
        inside: functions that a graph has run, whose modules count.
        beside: those that run around its launch.
        ahead: what each call does ahead of all launches: a mode that is always set there is that of each.
    """
    always = {id(each.value) for each in ahead if isinstance(each, ast.Expr)}
    every = [part for each in inside for top in each.body for part in ast.walk(top)]
    names = {n.id for n in every if isinstance(n, ast.Name)} | {n.attr for n in every if isinstance(n, ast.Attribute)}
    calls = [n for each in (*inside, *beside) for n in ast.walk(each) if isinstance(n, ast.Call)]
    trained = any(_is_method(n, "train") and not _is_off(n) for n in calls)  # by whoever validates, or by each epoch
    for function in () if trained else beside:
        for node in (n for top in function.body for n in within(top) if id(n) not in always):
            off = _is_method(node, "eval") and not _arguments(node)
            if (off or (_is_method(node, "train") and _is_off(node))) and _counts(function, _of(node), names):
                return TRAINING, node
    if any(map(is_backward, every)):
        graded = [(each, *one) for each in beside for one in _graded(each)]
        found = [(value, node) for each, value, path, node in graded if _counts(each, path, names)]
        if len({value for value, _ in found}) == 1:  # of both, one takes back what the other does
            return GRADED, found[0][1]
    return "", None


def told_of(node: ast.AST | None) -> str:
    """What to do about such a line, or "" where there is none."""
    return SET.format(text=ast.unparse(node)) if node is not None else ""


def _counts(function: Function, path: str, names: set[str]) -> bool:
    """Whether something has a name that a graph's functions have, too, or is given to its own by whoever calls it."""
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    own = set(path.split(".")) - {"self"} if path != "self" else {"self"}
    return bool(own & names) or path in {each.arg for each in given}


def _graded(function: Function) -> Iterator[tuple[bool, str, ast.AST]]:
    """``for p in net.parameters(): p.requires_grad = False``, also of one parameter, or of all of a module's."""
    over = dict[str, str]()
    for node in (n for top in function.body for n in within(top)):
        each = node.iter if isinstance(node, ast.For) else None
        if isinstance(node, ast.For) and isinstance(each, ast.Call) and called(each).endswith("parameters"):
            over |= dict.fromkeys((n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)), _of(each))
        value: ast.expr | None = None
        if _is_method(node, "requires_grad_") and isinstance(node, ast.Call):
            value, path = next(iter(_arguments(node)), ast.Constant(True)), _of(node)
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
            value, path = (node.value if target.attr == GRADED else None), path_of(target.value)
        if isinstance(value, ast.Constant) and type(value.value) is bool:
            if path in over:
                yield value.value, over[path], node
            elif path and path.partition(".")[0] not in locals_of(function) - {"self"}:
                yield value.value, path, node


def _is_method(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _is_off(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Constant) and each.value is False for each in _arguments(node))


def _arguments(node: ast.AST) -> list[ast.expr]:
    return [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []


def _of(node: ast.AST) -> str:
    """What a method is called of."""
    return path_of(node.func.value) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
