"""Branches that a number among the arguments takes every so many calls, or later: ``step % 100 == 0``, ``epoch < 5``.

A few calls take one way all the time, and a graph holds that one alone.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from inspect import getattr_static
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.source_lines import frame_at, path_of
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure, Frame

_ACTS = (ast.Call, ast.Assign, ast.AugAssign, ast.Return, ast.Raise)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def branches(
    code: CodeType, arguments: Mapping[str, Any], value_of: Callable[[str], Any] = lambda path: None
) -> Iterator[tuple[str, Frame]]:
    """Each such branch of a function in which something is done, with the argument that it comes of.

    ``value_of`` gives what a name has now: of each number a whole is a multiple of one, which decides nothing.
    """
    nodes = list(nodes_of(code))
    for name, value in arguments.items():
        if type(value) is not int:
            continue
        known = _made_of(nodes, name)
        for node in nodes:
            if isinstance(node, (ast.If, ast.IfExp)) and _turns(node, name, value, value_of):
                yield name, frame_at(code, node.lineno)
            if not isinstance(node, ast.If) or not _does_something(node):
                continue
            shares = (n for n in ast.walk(node.test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod))
            if any(_names(share.left) & known and not _is_one(share.right, value_of) for share in shares):
                yield name, frame_at(code, node.lineno)


def problems(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], known: list[Failure]
) -> list[Failure]:
    """Branches that its numbers take every so many calls, of which these few may have shown none."""
    inner = inspect.unwrap(function)  # below `@torch.no_grad()`
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if not isinstance(code, CodeType) or is_library(code.co_filename):
        return []
    owned = hasattr(function, "__func__")
    given = dict(zip(code.co_varnames[owned : code.co_argcount], args, strict=False)) | kwargs
    told = {f.frame for f in known if f.code == "branch-frozen"}
    owner = {code.co_varnames[0]: getattr(function, "__self__", None)} if owned else {}
    names = {**getattr(function, "__globals__", {}), **given, **owner}

    def value_of(path: str) -> Any:
        first, *rest = path.split(".")
        return reduce(lambda held, name: getattr_static(held, name, None), rest, names.get(first))  # runs nothing

    more = {at: name for name, at in branches(code, given, value_of) if at not in told}
    text = "is a number of the caller's, and only some of them take this way"
    return [BY_ID["branch-frozen"].failure(f"{name} {text}", at) for at, name in more.items()]


def _turns(node: ast.If | ast.IfExp, name: str, now: int, value_of: Callable[[str], Any]) -> bool:
    """Whether a branch goes the other way as an argument that counts up comes to a number which it is compared with."""
    if isinstance(node, ast.If) and not any(map(_is_work, [*node.body, *node.orelse])):
        return False
    for test in (n for n in ast.walk(node.test) if isinstance(n, ast.Compare) and len(n.ops) == 1):
        for one, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            if not isinstance(test.ops[0], _ORDERS) or not isinstance(one, ast.Name) or one.id != name:
                continue
            number = (
                other.value if isinstance(other, ast.Constant) else value_of(path_of(other)) if path_of(other) else 0
            )
            if type(number) is int and number > now + 1:  # the next number has been tried
                return True
    return False


def _is_work(part: ast.stmt) -> bool:
    """Whether a statement does something other than to refuse what is given."""
    return not isinstance(part, (ast.Raise, ast.Pass)) and any(isinstance(n, _ACTS) for n in ast.walk(part))


def _is_one(node: ast.expr, value_of: Callable[[str], Any]) -> bool:
    value = node.value if isinstance(node, ast.Constant) else value_of(path_of(node)) if path_of(node) else None
    return type(value) is int and value == 1


def _made_of(nodes: list[ast.AST], name: str) -> set[str]:
    """The argument, and the local names that numbers which come of it are given."""
    known = {name}
    makes = (ast.Assign, ast.AnnAssign)
    made = [n for n in nodes if isinstance(n, makes) and n.value is not None and _is_arithmetic(n.value)]
    for _ in made:
        for node in made:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and _names(node.value) & known:
                known |= {n.id for n in targets if isinstance(n, ast.Name)}
    return known


def _is_arithmetic(value: ast.expr) -> bool:
    """Whether no more than numbers come of it: names, constants, sizes, and what they make together."""
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in ("len", "int", "max", "min", "round"):
                return False
        elif not isinstance(node, plain):
            return False
    return True


def _does_something(node: ast.If) -> bool:
    return any(isinstance(n, _ACTS) for part in (*node.body, *node.orelse) for n in ast.walk(part))


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
