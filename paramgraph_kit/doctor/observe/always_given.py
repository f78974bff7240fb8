"""Tests of an argument that all calls in the step decide alike: ``if action is None``, where each gives an action."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import defines, last_name, nodes_of

_UNKNOWN, _SOMETHING = object(), object()
_NO_NONE = (ast.BinOp, ast.Compare, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.UnaryOp, ast.Lambda)
_GIVE_TENSORS = ("long", "float", "int", "to", "view", "reshape", "detach", "clone", "unsqueeze", "squeeze", "flatten")


def is_always_so(
    test: ast.expr,
    code: CodeType,
    codes: Sequence[CodeType],
    function: CodeType | None,
    tensors: Collection[str] = (),
) -> bool:
    """Whether a test asks an argument, and all calls in some code answer it alike.

    Args:
        test: what is asked.
        code: the function that asks it.
        codes: all that the step runs, or may run.
        function: the step itself, which its caller may give anything.
        tensors: its arguments that are tensors, of which each part is one.
    """
    name, for_none = _asked(test)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    called_otherwise = code.co_name == "forward" or code.co_name.startswith(("__", "<"))  # `net(x)`
    if name not in arguments or code is function or called_otherwise:
        return False
    known = [n for n in nodes_of(code) if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
    if any(n.lineno < test.lineno for n in known):
        return False
    nodes = [n for each in codes for n in nodes_of(each)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == code.co_name]
    others = [n for n in nodes if _names(n, code.co_name)]
    if not calls or len(others) > len({id(call.func) for call in calls}):
        return False  # what is handed on by its name is called with who knows what
    of_step = {id(n) for n in nodes_of(function)} if function is not None else set()
    found = [_given(call, name, code, tensors if id(call) in of_step else ()) for call in calls]
    answers = {(each is None if for_none else bool(each)) for each in found if each is not _SOMETHING or for_none}
    unknown = any(each is _UNKNOWN or (each is _SOMETHING and not for_none) for each in found)
    return not unknown and len(answers) == 1


def _names(node: ast.AST, name: str) -> bool:
    read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    return read and last_name(node) == name


def _asked(test: ast.expr) -> tuple[str, bool]:
    """The name that a test asks, and whether it asks it for None."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asked(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        return (test.left.id, True) if none and isinstance(test.left, ast.Name) else ("", False)
    return (test.id, False) if isinstance(test, ast.Name) else ("", False)


def _given(call: ast.Call, name: str, code: CodeType, tensors: Collection[str]) -> Any:
    """What a call gives to an argument: a constant, something that is not None, or nobody knows."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords):
        return _UNKNOWN
    named = [k.value for k in call.keywords if k.arg == name]
    arguments = list(code.co_varnames[: code.co_argcount])
    if isinstance(call.func, ast.Attribute) and arguments[:1] == ["self"]:
        arguments = arguments[1:]
    given = named or [value for each, value in zip(arguments, call.args, strict=False) if each == name]
    if not given:
        return _default(name, code)
    return _value(given[0], tensors)


def _value(node: ast.expr, tensors: Collection[str]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Subscript):
        of_tensor = isinstance(node.value, ast.Name) and node.value.id in tensors
        some = of_tensor or isinstance(node.slice, ast.Slice) or _value(node.value, tensors) is _SOMETHING
        return _SOMETHING if some else _UNKNOWN
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _SOMETHING if node.func.attr in _GIVE_TENSORS else _UNKNOWN
    return _SOMETHING if isinstance(node, _NO_NONE) else _UNKNOWN


def _default(name: str, code: CodeType) -> Any:
    """The constant that an argument has where a call does not give it."""
    node: Any = next((n for n in nodes_of(code) if defines(n, code)), None)
    if node is None:
        return _UNKNOWN
    every = [*node.args.posonlyargs, *node.args.args]
    values = node.args.defaults
    pairs = [*zip(every[len(every) - len(values) :], values, strict=False)]
    pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=False) if d is not None]
    found = [value for argument, value in pairs if argument.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else _UNKNOWN
