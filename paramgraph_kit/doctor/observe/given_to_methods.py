"""Arguments that a method which a call begins with gives a name that the graph has read: ``self.start(features)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from inspect import unwrap
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import code_of, is_a, methods_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_MOST_DEEP = 3  # methods that hand an argument on


def rebound_by_methods(
    region: Region, function: Callable[..., Any], given: Mapping[str, Any], read: Collection[int]
) -> Iterator[Failure]:
    """Lines that do so in each call; ``read``: memory that a call reads which only replays.

    All calls that are made here get the same tensors, so that no name shows that its memory has moved.
    """
    owner = getattr(function, "__self__", None)
    code = code_of(unwrap(function))
    if owner is None or code is None or region.values is None or is_a(owner, type):
        return
    held = ((use.text, use.value()) for use in region.values.uses)
    paths = {text: storage_key(value) for text, value in held if is_a(value, torch.Tensor)}
    methods = methods_of(type(owner))
    for at, node, name in _kept(code, dict(zip(given, given, strict=True)), methods, _MOST_DEEP):
        value, target = given[name], ast.unparse(node.targets[0])
        key = storage_key(value) if is_a(value, torch.Tensor) else 0
        if key and key not in read and paths.get(target) == key and at is not region.code:
            text = f"{target} has other memory from here on, and the graph reads that of its capture"
            fix = f"before  {ast.unparse(node)}\nafter   {target}.copy_({ast.unparse(node.value)})"
            yield replace(BY_ID["stale-input"].failure(text, frame_at(at, node.lineno)), fix=fix)


def _kept(
    code: CodeType, names: Mapping[str, str], methods: Mapping[str, CodeType], deep: int
) -> Iterator[tuple[CodeType, ast.Assign, str]]:
    """What each call gives an attribute: the line, and the argument by the name that the first function has for it."""
    nodes = [*nodes_of(code)]
    names = {name: of for name, of in names.items() if not any(_gives(each, name) for each in nodes)}
    own = code.co_varnames[0] if code.co_argcount else ""
    if any(isinstance(n, ast.Attribute) and n.attr == "data_ptr" for n in nodes):
        return  # it asks for the memory itself
    whole = next((n for n in nodes if isinstance(n, FUNCTIONS[:2]) and n.name == code.co_name), None)
    for node in _always(whole.body) if whole is not None else ():
        value = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
        if isinstance(node, ast.Assign) and isinstance(value, ast.Name):
            if value.id in names and isinstance(node.targets[0], ast.Attribute):
                yield code, node, names[value.id]
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and deep:
            other = methods.get(value.func.attr) if ast.unparse(value.func.value) == own else None
            if other is not None:
                yield from _kept(other, _handed(value, other, names), methods, deep - 1)


def _always(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What a function does in each of its calls."""
    for node in body:
        if isinstance(node, ast.With):
            yield from _always(node.body)
        else:
            yield node
        if any(isinstance(n, ast.Return) for n in ast.walk(node)):
            return


def _handed(call: ast.Call, code: CodeType, names: Mapping[str, str]) -> dict[str, str]:
    """What a method calls the arguments that it is handed as they are."""
    own = code.co_varnames[1 : code.co_argcount]
    pairs = [*zip(own, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg)]
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    found = {name: value.id for name, value in pairs if isinstance(value, ast.Name) and value.id in names}
    return {} if starred else {name: names[of] for name, of in found.items()}


def _gives(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
