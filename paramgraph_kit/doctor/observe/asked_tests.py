"""Tests of a step that ask nothing but its number arguments: what they answer for other numbers is computed.

``hex(step)[-1] == "f"``, ``"%03d" % step in late``: no number notes that its digits are taken there.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.asks import Argument, Ask, Number
from paramgraph_kit.doctor.observe.held import code_of

_PURE = """abs all any bin bool chr divmod enumerate filter float format frozenset hex int len list map max min oct
    ord pow range repr reversed round set sorted str sum tuple zip""".split()  # noqa: SIM905 - shorter so
_KNOWN = {name: getattr(builtins, name) for name in _PURE} | {"math": math, "re": re}
_NO_EXPRESSION = (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
_TAKES_LONG = (ast.Pow, ast.LShift)


def asked_tests(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers: Mapping[Argument, Number]
) -> Iterator[Ask]:
    """The tests in the lines of a function that ask its number arguments alone."""
    code = code_of(getattr(function, "forward", None) or function)
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return
    every = [*args, *kwargs.values()]
    own = {name: next((n for n, each in enumerate(every) if each is value), -1) for name, value in given.items()}
    named = {name: (at, "") for name, at in own.items() if (at, "") in numbers}
    if code is None or not named:
        return
    for node in nodes_of(code):
        test = node.test if isinstance(node, (ast.If, ast.IfExp, ast.While)) else None
        asked = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)} & named.keys() if test is not None else ()
        if test is not None and asked and _is_pure(test, {*named}):
            whole = compile(ast.Expression(test), "<test>", "eval")
            for name in asked:
                known = {other: given[other] for other in named}
                decides = _deciding(whole, known, name)
                with_own = _answer(decides, given[name])
                if with_own is not None:
                    yield Ask(named[name], (code, test.lineno), decides, with_own)


def _deciding(whole: Any, known: dict[str, Any], name: str) -> Callable[[Number], bool]:
    return lambda value: bool(eval(whole, {"__builtins__": {}, **_KNOWN}, known | {name: value}))


def _answer(decides: Callable[[Number], bool], value: Number) -> bool | None:
    try:
        return decides(value)
    except Exception:  # a test that fails by itself
        return None


def _is_pure(test: ast.expr, names: set[str]) -> bool:
    """Whether an expression has no other names than some, and those of functions that only compute."""
    own = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(test):
        if isinstance(node, _NO_EXPRESSION) or (isinstance(node, ast.BinOp) and isinstance(node.op, _TAKES_LONG)):
            return False
        if isinstance(node, ast.Name) and node.id not in {*names, *own, *_KNOWN}:
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return False
    return True
