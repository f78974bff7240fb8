"""What lines do also through what they call: the program's own functions and methods, as far as they are known."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import FunctionType

from paramgraph_kit.driver.files import is_library
from paramgraph_kit.rewrite.source.edits import Function, Source, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, renamed

_DEEP = 4


def called_from(place: Place, nodes: Iterable[ast.AST], deep: int = _DEEP) -> Iterator[ast.AST]:
    """All syntax of the program's functions that some nodes call, and of those that these call."""
    seen = set[tuple[str, int]]()
    waiting = [(place, node, deep) for part in nodes for node in within(part)]
    while waiting:
        at, node, left = waiting.pop()
        found = function_of_call(at, node) if isinstance(node, ast.Call) and left else None
        if found is None or (key := (found[0].source.file, found[1].lineno)) in seen:
            continue
        seen.add(key)
        inside = [n for part in found[1].body for n in within(part)]
        yield from inside
        waiting += [(found[0], n, left - 1) for n in inside]


def function_of_call(place: Place, call: ast.Call) -> tuple[Place, Function] | None:
    """The function of the program's that a call runs, with its file."""
    owner, _, name = path_of(call.func).rpartition(".")
    if not name:
        return None
    if owner == "self" and (own := _method(place.source, call, name)) is not None:
        return place, own
    value = place.value(owner) if owner and owner != "self" else None
    value = getattr(type(value), name, None) if value is not None else place.space.get(name) if not owner else None
    value = inspect.unwrap(value) if callable(value) else None
    if isinstance(value, FunctionType) and not is_library(value.__code__.co_filename):
        source = place.source
        if value.__code__.co_filename != source.file:
            source = Source.of(value.__code__.co_filename) or source
        code = value.__code__
        same = [n for n in _functions(source) if n.name == code.co_name and _is_at(n, code.co_firstlineno)]
        return (replace(place, source=source, space=value.__globals__), same[0]) if same else None
    same = [n for n in _functions(place.source) if n.name == name] if not owner else []
    return (place, same[0]) if len(same) == 1 else None


def _method(source: Source, call: ast.Call, name: str) -> Function | None:
    above: ast.AST | None = call
    while above is not None and not isinstance(above, ast.ClassDef):
        above = source.parents.get(above)
    body = above.body if above is not None else []
    own = [n for n in body if isinstance(n, Function) and n.name == name]
    every = own or [n for n in _functions(source) if n.name == name]  # of a base class
    return every[0] if own or len(every) == 1 else None


def _functions(source: Source) -> list[Function]:
    return [n for n in ast.walk(source.tree) if isinstance(n, Function)]


def _is_at(function: Function, line: int) -> bool:
    return line in (function.lineno, *(each.lineno for each in function.decorator_list))


def asked_by_caller(place: Place, function: Function, test: ast.expr) -> str:
    """A test as the one caller of its function would write it: ``epoch >= 1`` of ``cancel(epoch, net, 1)``.

    Arguments of a function that is called within a step are not there before a launch.
    """
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    if place.entry in ("", function.name) or len(calls) != 1:
        return place.text(test)
    own = arguments_of(function)
    given: dict[str, ast.expr] = {}
    if own[:1] == ["self"] and isinstance(calls[0].func, ast.Attribute):
        own, given = own[1:], {"self": calls[0].func.value}
    given |= dict(zip(own, calls[0].args, strict=False))
    given |= {each.arg: each.value for each in calls[0].keywords if each.arg}
    named = names_in(test) & {*arguments_of(function)}
    if not named <= given.keys() or any(isinstance(n, ast.Starred) for n in calls[0].args):
        return place.text(test)
    plain = (ast.Name, ast.Attribute, ast.Constant)
    texts = {n: given[n] for n in named}
    new = {n: place.text(v) if isinstance(v, plain) else place.source.bracketed(v) for n, v in texts.items()}
    return renamed(place.text(test), new)
