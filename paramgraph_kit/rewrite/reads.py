"""What a graph still reads of the host's that is given another value behind its launch: it would stay as it was."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.rewrite.edits import Function, locals_of, path_of, within

_CHANGES = frozenset(
    """append extend insert pop popleft appendleft remove clear update add setdefault discard""".split()  # noqa: SIM905
)


def frozen(lines: list[str], moved: Collection[str], ran: Collection[str], containers: Collection[str]) -> str:
    """The name of something that functions ``moved`` rebind, and functions that a graph has ``ran`` read, or "".

    ``containers`` are the names of lists, sets and dictionaries. Steps that are tried may not show it: a number may
    have come to its end before the capture.
    """
    tree = ast.parse("".join(lines))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    bound = {name for each in functions if each.name in moved for name in _bound(each, containers)}
    for function in functions:
        if function.name in ran and function.name not in moved and (read := bound & set(_read(function))):
            return min(read)
    return ""


def _bound(function: Function, containers: Collection[str]) -> Iterator[str]:
    """Variables around a function, and attributes, that it gives another value."""
    local = locals_of(function)
    for node in (part for top in function.body for part in within(top)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            changed = path_of(node.func.value).rpartition(".")[2]
            targets = [node.func.value] if changed in containers else []
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                while isinstance(each, ast.Subscript):
                    each = each.value
                if isinstance(each, ast.Name) and each.id not in local:
                    yield each.id
                elif isinstance(each, ast.Attribute):
                    yield f".{each.attr}"


def _read(function: Function) -> Iterator[str]:
    local = locals_of(function)
    every = [part for top in function.body for part in within(top)]
    methods = {node.func for node in every if isinstance(node, ast.Call)}
    for node in every:
        if node in methods:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
