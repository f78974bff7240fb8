"""Attributes of one name that several classes have each for itself: ``self.n`` of a model, and of a trainer."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from paramgraph_kit.doctor.explain.syntax import last_name

Node = TypeVar("Node", bound=ast.AST)
Other = TypeVar("Other", bound=ast.AST)

_MARK = "\N{MIDDLE DOT}"  # may end an identifier's stem, and no file has it with the name of a class behind it


def tell_apart(tree: ast.Module, functions: Sequence[ast.AST], same: Collection[str] = ()) -> None:
    """Name ``self.n`` with its class where several have one each, but those in ``same``, which have more names.

    Only what these functions do with it counts, and is named so.
    """
    for node, owner in _owned(tree, functions):
        if node.attr not in same:
            node.attr = f"{node.attr}{_MARK}{owner}"


def of_one_owner(
    tree: ast.Module, functions: Sequence[ast.AST], name: str, read: Sequence[Node], bound: Sequence[Other]
) -> tuple[list[Node], list[Other]]:
    """Statements that read and bind an attribute, without those that read, or bind, another object's alone."""
    owners = {id(node): owner for node, owner in _owned(tree, functions) if node.attr == name}

    def of(node: ast.AST) -> set[str]:
        named = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == name]
        return {owners.get(id(n), "") for n in named} or {""}

    both = {each for node in read for each in of(node)} & {each for node in bound for each in of(node)}
    if not both:
        return list(read), list(bound)
    return [node for node in read if of(node) & both], [node for node in bound if of(node) & both]


def _owned(tree: ast.Module, functions: Sequence[ast.AST]) -> list[tuple[ast.Attribute, str]]:
    """The attributes that several classes have each for itself, with the class.

    That is so where the name is reached through ``self`` alone, each class gives it its first value in ``__init__``,
    and no class of the file is made of two of them.
    """
    used: dict[str, list[tuple[ast.Attribute, str]]] = {}
    inside = {part for each in functions for part in ast.walk(each)}
    for node, owner in (each for each in _attributes(tree, "", _given_self(tree)) if each[0] in inside):
        used.setdefault(node.attr, []).append((node, owner))
    known = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = []
    for name, here in used.items():
        owners = {owner for _, owner in here}
        found += here if len(owners) > 1 and "" not in owners and _are_apart(owners, known, name) else []
    return found


def plain(name: str) -> str:
    """The name as the file has it."""
    return name.partition(_MARK)[0]


def _attributes(node: ast.AST, owner: str, parts: dict[str, str]) -> Iterator[tuple[ast.Attribute, str]]:
    """All attributes, and the class by whose ``self`` each is reached, or ""."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Attribute):
            yield each, owner if isinstance(each.value, ast.Name) and each.value.id == "self" else ""
        of_part = parts.get(each.name, "") if isinstance(each, ast.FunctionDef) and not owner else owner
        yield from _attributes(each, each.name if isinstance(each, ast.ClassDef) else of_part, parts)


def _given_self(tree: ast.Module) -> dict[str, str]:
    """Functions of the file to which the methods of one class give ``self``: a part that is cut out of one."""
    found: dict[str, set[str]] = {}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for owner, call in ((c.name, n) for c in classes for n in ast.walk(c) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name) and call.args and isinstance(call.args[0], ast.Name):
            found.setdefault(call.func.id, set()).add(owner if call.args[0].id == "self" else "")
    return {name: next(iter(owners)) for name, owners in found.items() if len(owners) == 1}


def _are_apart(owners: set[str], known: dict[str, ast.ClassDef], name: str) -> bool:
    lines = {each: line_of(each, known) for each in known}
    if any(len(owners & line) > 1 for line in lines.values()):
        return False
    return all(any(_begins(known[each], name) for each in lines[owner] if each in known) for owner in owners)


def line_of(name: str, known: dict[str, ast.ClassDef]) -> set[str]:
    """A class and all that it is made of, as far as the file has them."""
    found, todo = set[str](), [name]
    while todo:
        if (each := todo.pop()) in known and each not in found:
            found.add(each)
            todo += map(last_name, known[each].bases)
    return found


def _begins(owner: ast.ClassDef, name: str) -> bool:
    """Whether ``__init__`` gives the attribute its first value."""
    made = [part for part in owner.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    stores = (n for part in made for n in ast.walk(part) if isinstance(n, ast.Attribute) and n.attr == name)
    return any(isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name) and n.value.id == "self" for n in stores)
