"""Through partials and functions that only call another one: what the user's function gets, and how it is written."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

from paramgraph_kit.driver.files import is_library
from paramgraph_kit.rewrite.source.edits import Function, Source, first_line, is_text
from paramgraph_kit.rewrite.source.place import NUMBER

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_PLAIN = (*NUMBER, str, bytes, type(None))
_MOST = 8  # calls that lead to one another


def inner(function: Any) -> Any:
    """What a partial, or a function that does nothing but call another one of the user's, leads to."""
    for _ in range(_MOST):
        if isinstance(function, functools.partial):
            function = function.func
        elif (found := _only_call(function)) is not None:
            function = found[1]
        else:
            break
    return function


class OfLoop(functools.partial[Any]):
    """A round of a loop, with what the loop gives each of them: it calls what goes around a launch by its own names."""


class Given(tuple[Any, ...]):
    """All arguments of a round: also those that its partial has, of which another round may have others."""


def expanded(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments that ``inner(function)`` gets."""
    for _ in range(_MOST):
        if isinstance(function, functools.partial):
            function, args, kwargs = function.func, (*function.args, *args), function.keywords | kwargs
        elif (found := _only_call(function)) is not None:
            call, callee = found
            space = _space(function) | _bound(function, args, kwargs)
            args = tuple(_value(each, space) for each in call.args)
            kwargs = {option.arg or "": _value(option.value, space) for option in call.keywords}
            function = callee
        else:
            break
    return args, kwargs


def written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], called: str) -> tuple[str, dict[str, str]]:
    """The arguments as the user writes them in a call, and what each parameter of ``inner(function)`` is written as.

    ``called`` is what the user calls the function. Parameters that are not given are written as their defaults.
    """
    own = _signature(function)
    try:
        bound = own.bind(*args, **kwargs)
    except (TypeError, AttributeError):
        return "", {}
    given: list[str] = []
    by_order: list[str] = []
    by_name: dict[str, str] = {}
    for name, kind in ((p, own.parameters[p].kind) for p in bound.arguments):
        if kind is inspect.Parameter.VAR_KEYWORD:
            given.append(f"**{name}")
        elif name in kwargs or kind is inspect.Parameter.KEYWORD_ONLY:
            given.append(f"{name}={name}")
            by_name[name] = name
        else:
            given.append(f"*{name}" if kind is inspect.Parameter.VAR_POSITIONAL else name)
            by_order.append(name)
    return ", ".join(given), _written_inside(function, by_order, by_name, called)


def _written_inside(function: Any, texts: list[str], keywords: dict[str, str], name: str) -> dict[str, str]:
    for _ in range(_MOST):
        if isinstance(function, functools.partial):
            space = _space(function.func)
            known = [_text_of(value, space, f"{name}.args[{i}]") for i, value in enumerate(function.args)]
            more = {k: _text_of(value, space, f'{name}.keywords["{k}"]') for k, value in function.keywords.items()}
            function, texts, keywords, name = function.func, [*known, *texts], more | keywords, f"{name}.func"
        elif (found := _only_call(function)) is not None:
            call, callee = found
            names = _texts(function, texts, keywords)
            texts = [_put(each, names) for each in call.args]
            keywords = {option.arg or "": _put(option.value, names) for option in call.keywords}
            function = callee
        else:
            break
    return _texts(function, texts, keywords)


def _texts(function: Any, texts: list[str], keywords: dict[str, str]) -> dict[str, str]:
    """What each parameter of a function is written as."""
    own = _signature(function)
    try:
        found: dict[str, Any] = dict(own.bind(*texts, **keywords).arguments)
    except TypeError:
        return {}
    for name, parameter in own.parameters.items():
        value = found.get(name)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and isinstance(value, tuple):
            found[name] = value[0] if len(value) == 1 else f"({', '.join(value)},)"
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD and isinstance(value, dict):
            found[name] = f"dict({', '.join(f'{k}={v}' for k, v in value.items())})"
        elif value is None and isinstance(parameter.default, _PLAIN):
            found[name] = repr(parameter.default)
        elif value is None and parameter.default is not parameter.empty:
            space = _space(function)
            called = "self." * hasattr(function, "__self__") + name_of(function, space)
            found[name] = _text_of(
                parameter.default, space, f'inspect.signature({called}).parameters["{name}"].default'
            )
    return found


def _put(node: ast.expr, names: Mapping[str, str]) -> str:
    class Put(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.parse(names[name.id], mode="eval").body if name.id in names else name

    return ast.unparse(Put().visit(ast.parse(ast.unparse(node), mode="eval").body))


def _text_of(value: Any, space: Mapping[str, Any], otherwise: str) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    return next((n for n, each in space.items() if each is value and not n.startswith("_")), otherwise)


def _only_call(function: Any) -> tuple[ast.Call, Any] | None:
    """The call that is all that a function of the user's does, and what it calls, which is the user's as well."""
    if not isinstance(function, types.FunctionType) or is_library(function.__code__.co_filename):
        return None
    if hasattr(function, "__wrapped__"):
        return None
    call = _returned_call(function.__code__)
    if call is None or not all(_is_plain(each) for each in (*call.args, *(option.value for option in call.keywords))):
        return None
    if any(option.arg is None for option in call.keywords) or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    parameters = set(inspect.signature(function).parameters)
    if any(isinstance(n, ast.Name) and n.id in parameters for n in ast.walk(call.func)):
        return None
    try:
        callee = _value(call.func, _space(function))
    except Exception:
        return None
    own = getattr(callee, "forward", None) if isinstance(callee, torch.nn.Module) else callee
    while isinstance(own, functools.partial):
        own = own.func
    plain: Any = getattr(own, "__func__", own)
    code = getattr(inspect.unwrap(plain), "__code__", None)
    return (call, callee) if code is not None and not is_library(code.co_filename) else None


def _is_plain(node: ast.expr) -> bool:
    return not any(
        not isinstance(part, (ast.Name, ast.Attribute, ast.Constant, ast.expr_context)) for part in ast.walk(node)
    )


@functools.lru_cache(256)
def _returned_call(code: types.CodeType) -> ast.Call | None:
    source = Source.of(code.co_filename)
    if source is None:
        return None
    kinds = ast.Lambda if code.co_name == "<lambda>" else Function
    every = [n for n in ast.walk(source.tree) if isinstance(n, kinds)]
    here = [n for n in every if _begins(n) == code.co_firstlineno and getattr(n, "name", "<lambda>") == code.co_name]
    if len(here) != 1:
        return None
    found = here[0]
    if isinstance(found, ast.Lambda):
        return found.body if isinstance(found.body, ast.Call) else None
    if not isinstance(found, ast.FunctionDef) or found.decorator_list:
        return None
    body = [node for node in found.body if not is_text(node)]
    value = body[0].value if len(body) == 1 and isinstance(body[0], (ast.Return, ast.Expr)) else None
    return value if isinstance(value, ast.Call) else None


def _begins(node: ast.AST) -> int:
    return first_line(node) if isinstance(node, ast.stmt) else getattr(node, "lineno", 0)


def _space(function: Any) -> dict[str, Any]:
    """Names that a function can read of what is around it."""
    if isinstance(function, torch.nn.Module):
        function = function.forward
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(plain, types.FunctionType):
        return {}
    try:
        inside = inspect.getclosurevars(plain).nonlocals
    except ValueError:
        inside = {}
    return {**plain.__globals__, **inside}


def _bound(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _value(node: ast.expr, space: dict[str, Any]) -> Any:
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<call>", "eval")
    return eval(code, {"__builtins__": __builtins__}, space)


def _signature(function: Any) -> inspect.Signature:
    if isinstance(function, torch.nn.Module):
        function = function.forward
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.Signature()


def name_of(function: Any, space: Mapping[str, Any]) -> str:
    """What the user calls a function that is no method: the name that has it, where one is known."""
    own = str(getattr(function, "__name__", ""))
    if own.isidentifier() and "<locals>" not in getattr(function, "__qualname__", ""):
        return own
    spaces = (space, getattr(sys.modules.get("__main__"), "__dict__", {}))
    found = (n for known in spaces for n, each in known.items() if each is function and not n.startswith("_"))
    return next(found, own if own.isidentifier() else "fn")


def named_on_the_way(function: Any) -> dict[str, Any]:
    """What partials, and functions that only call another one, hand on, by the names that it has around them."""
    found: dict[str, Any] = {}
    for _ in range(_MOST):
        if isinstance(function, functools.partial):
            space = _space(inner(function))
            for value in (*function.args, *function.keywords.values()):
                if (text := _text_of(value, space, "")).isidentifier():
                    found[text] = value
            function = function.func
        elif (call := _only_call(function)) is not None:
            space = _space(function)
            names = {n.id for n in ast.walk(call[0]) if isinstance(n, ast.Name)}
            found |= {name: space[name] for name in sorted(names) if name in space}
            function = call[1]
        else:
            break
    return found
