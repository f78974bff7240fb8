"""Whether a call by the name of a method is one of that method: another class may have one of the same name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.doctor.explain.syntax import last_name, unpacked
from paramgraph_kit.rewrite.source.attribute_owners import line_of
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.reached_as import class_of


def is_of_another(source: Source, call: ast.Call, own: Function, owner: str) -> bool:
    """Whether a call by the name of a function, of a class or none, is told to be one of another class's.

    ``env.step(actions)``, where ``env = Env()`` and ``step`` is one of ``Actor``'s; not where the file does not tell.
    """
    if not isinstance(call.func, ast.Attribute):
        return bool(owner) and _is_a_function(source, call)
    known = {n.name: n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)}
    kinds = _kinds_of(source, call, call.func.value, known)
    if not owner:
        return any(_has(known[each], own.name) for each in kinds)
    if kinds:
        return not any(_is_kind_of(each, owner, known) or _is_kind_of(owner, each, known) for each in kinds)
    others = [each for each in known.values() if each.name != owner and _has(each, own.name)]
    return bool(others) and not _fits(call, own)


def _kinds_of(source: Source, call: ast.Call, owner: ast.expr, known: dict[str, ast.ClassDef]) -> set[str]:
    """The classes of the file of which the object that a call goes to may be one; nothing where others give it."""
    path, function = path_of(owner), source.function_of(call)
    if isinstance(owner, ast.Call):
        return {name} if (name := last_name(owner.func)) in known else set()
    if path == "self" and function is not None:
        return {name} if (name := class_of(source.tree, function)) else set()
    own = function is not None and any(each == path for each, _ in _given(function))
    scope = function if own and function is not None and "." not in path else source.tree
    made = [value for each, value in _given(scope) if each == path]
    names = [last_name(value.func) if isinstance(value, ast.Call) else "" for value in made]
    return {*names} if path and names and all(name in known for name in names) else set()


def _given(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names and attributes to which assignments give something, with that."""
    for node in (n for n in ast.walk(scope) if isinstance(n, ast.Assign)):
        for target in node.targets:
            yield from ((path_of(each), value) for each, value in unpacked(node, target))


def _is_kind_of(name: str, other: str, known: dict[str, ast.ClassDef]) -> bool:
    line = line_of(name, known)
    return other in {name, *line, *(last_name(base) for each in line for base in known[each].bases)}


def _has(owner: ast.ClassDef, name: str) -> bool:
    return any(isinstance(each, Function) and each.name == name for each in owner.body)


def _is_a_function(source: Source, call: ast.Call) -> bool:
    """Whether a plain name that is called is a function of the file's level."""
    return any(isinstance(n, Function) and n.name == last_name(call.func) for n in source.tree.body)


def _fits(call: ast.Call, own: Function) -> bool:
    """Whether a method takes as many arguments as a call has."""
    spec, given = own.args, [*call.args, *call.keywords]
    if spec.vararg or spec.kwarg or any(isinstance(each, ast.Starred) for each in call.args):
        return True
    names = arguments_of(own)[1:]
    least = len(names) - len(spec.defaults) - sum(each is not None for each in spec.kw_defaults)
    return least <= len(given) <= len(names)
