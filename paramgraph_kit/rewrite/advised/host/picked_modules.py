"""Advice for a module that the host picks by a name or a number: ``self.adapters[self.active](x)``."""

from __future__ import annotations

import ast
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Function, heads, path_of
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.writes import paths


def picked_module(place: Place) -> str:
    """A graph has the weights of one of them: there is a graph for each that comes."""
    if place.failure.code != "stale-input":
        return ""
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call)):
        pick = call.func
        if not isinstance(pick, ast.Subscript) or isinstance(pick.slice, ast.Constant):
            continue
        if not _has_modules(_held(place, path_of(pick.value))):
            continue
        key = place.text(pick.slice)
        names = {path for path in paths(pick.slice) if "." in path}
        lines = [n.lineno for n in ast.walk(place.source.tree) if _sets(place, n, names)]  # type: ignore[attr-defined]
        first = f", with line {' and '.join(map(str, sorted(lines)))}, which sets it, done before that" if lines else ""
        return (
            f"`{place.text(pick)}` is another module in other steps, and a graph has the weights of one: this line "
            f"stays; keep a graph for each that comes, `graphs[{key}]`, captured when it first comes, and launch that "
            f"of the step's `{key}`{first}"
        )
    return ""


def _held(place: Place, path: str) -> Any:
    return place.attributes.get(path.rpartition(".")[2]) if "." in path else place.value(path) if path else None


def _has_modules(held: Any) -> bool:
    every = held.values() if isinstance(held, (dict, torch.nn.ModuleDict)) else held
    kinds = (dict, list, tuple, torch.nn.ModuleDict, torch.nn.ModuleList)
    return isinstance(held, kinds) and any(isinstance(each, torch.nn.Module) for each in every)


def _sets(place: Place, node: ast.AST, names: set[str]) -> bool:
    """Whether a line outside of ``__init__`` gives an attribute of such a name a value."""
    if not isinstance(node, ast.Assign):
        return False
    function = place.source.function_of(node)
    last = {path.rpartition(".")[2] for path in names}
    own = isinstance(function, Function) and function.name != "__init__"
    return own and any(path_of(t).rpartition(".")[2] in last for t in node.targets if isinstance(t, ast.Attribute))
