"""How the file calls an object that a method has as its owner: ``glass.schedule`` for the ``self`` of its class."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.rewrite.source.edits import Function
from paramgraph_kit.rewrite.source.place import Place

DEEP = 3  # through how many attributes an object is looked for
MOST = 2000  # objects
_PLAIN = (torch.Tensor, str, bytes, int, float, complex, type, dict, list, tuple, set)


def class_of(tree: ast.AST, function: Function) -> str:
    """The name of the class that a function is a method of, or ""."""
    every = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    return next((each.name for each in every if function in each.body), "")


def paths_to(kind: str, attribute: str, space: Mapping[str, Any], owner: Any) -> list[str]:
    """What objects of a class that have an attribute are called at a file's level, each once, the owner's first.

    Args:
        owner: the object whose method a step is, or None.
    """
    found: dict[int, str] = {}
    for path, value in reached(space, owner):
        of_kind = any(each.__name__ == kind for each in type(value).__mro__)
        if of_kind and attribute in attributes_of(value):
            found.setdefault(id(value), path)
    return list(found.values())


def as_called(place: Place, path: str) -> str:
    """``trainer.gen`` for the ``self.gen`` of a method, where the file's level has one such object; else the same."""
    function = place.source.function_of(place.statement)
    first, _, rest = path.partition(".")
    if function is None or first != "self" or not rest:
        return path
    found = paths_to(class_of(place.source.tree, function), rest.partition(".")[0], place.space, None)
    return f"{found[0]}.{rest}" if len(found) == 1 else path


def reached(space: Mapping[str, Any], owner: Any) -> Iterator[tuple[str, Any]]:
    """Objects of the user's by their paths, the nearest first; what the owner has goes ahead of what others have."""
    names = [(name, value) for name, value in space.items() if name.isidentifier() and not name.startswith("_")]
    if owner is not None and not any(value is owner for _, value in names):
        names.append(("self", owner))
    waiting = [(name, value, 0) for name, value in _own(sorted(names, key=lambda each: each[1] is not owner))]
    seen = set[int]()
    while waiting and len(seen) < MOST:
        path, value, deep = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if deep < DEEP:
            every = attributes_of(value)
            inner = [(n, held) for n, held in [*every.items(), *(every.get("_modules") or {}).items()] if _is_name(n)]
            waiting += [(f"{path}.{name}", held, deep + 1) for name, held in _own(inner)]


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _own(values: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Those that are objects with attributes, of a class that is no library's."""
    return [
        (name, value)
        for name, value in values
        if not isinstance(value, _PLAIN)
        and not type(value).__module__.startswith(("torch", "numpy", "builtins"))
        and attributes_of(value)
    ]
