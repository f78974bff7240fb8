"""Whose memory lines behind a launch exchange, as far as their text tells, and whether the launch reads that."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.memory_moved import moves_of
from paramgraph_kit.rewrite.source.edits import Function, assigned, locals_of, path_of
from paramgraph_kit.rewrite.source.place import called

MEMORY = "memory of a parameter"  # what a graph keeps, where no name is told
OTHER_MEMORY = "other memory is given to a parameter behind the launch: a graph that reads it keeps the old one"
_PARTS = frozenset("parameters buffers named_parameters named_buffers modules children values items data".split())  # noqa: SIM905
_SAME = ("list", "tuple", "iter", "reversed", "enumerate", "zip")
_DEEPEST = 8  # callers of callers


def memory_read(
    tree: ast.Module,
    functions: Sequence[Function],
    binding: Iterable[Function],
    stay: Iterable[Function],
    is_shared: Callable[[Collection[str]], bool],
) -> str:
    """What a graph keeps of a parameter that gets other memory in functions ``binding``, or "".

    That is none which only names have that no function that stays in the graph reads, and that nothing else has.
    """
    nodes = [n for each in stay for n in ast.walk(each)]
    read = {f".{n.attr}" for n in nodes if isinstance(n, ast.Attribute)}
    read |= {n.id for n in nodes if isinstance(n, ast.Name)}
    for function in binding:
        for _, owner in moves_of([function]):
            names = _named(functions, function, owner, _DEEPEST)
            if not names or names & read or is_shared(names):
                return MEMORY
    return ""


def shared_by(names: Collection[str], space: Mapping[str, Any], holders: Sequence[Holder]) -> bool:
    """Whether tensors that some names have are had by others, too, or nobody knows what these names have."""
    named = [(name, space[name], None) for name in names if name in space]
    for holder in holders:
        if holder.kind == "attributes" or (holder.kind == "container" and holder.name == "_modules"):
            items = holder.target.items()
            named += [(f".{key}", value, holder.target) for key, value in items if f".{key}" in names]
        elif holder.kind in ("cell", "global") and holder.name in names:
            named.append((holder.name, holder.read(), None))
    if {name for name, *_ in named} != {*names}:
        return True
    inside: dict[int, object] = {}
    for _, value, _ in named:
        _gather(value, inside)
    own = {id(value) for _, value, _ in named}
    places = {(id(holder), name.lstrip(".")) for name, _, holder in named}
    if not any(isinstance(each, torch.Tensor) for each in inside.values()):
        return True
    for holder in holders:
        if id(holder.target) in inside:
            continue
        values = holder.read()
        items = values.items() if isinstance(values, dict) else enumerate(_parts(values))
        for key, value in items:
            mine = id(value) in own and ((id(holder.target), key) in places or holder.name in names)
            if not mine and id(value) in inside:
                return True
    return any(id(value) in inside and name not in names for name, value in space.items())


def tensor_slots(holders: Iterable[Holder]) -> set[str]:
    """Attributes that are tensors of each object that has them, with a dot."""
    tensors, others = set[str](), set[str]()
    for holder in holders:
        if holder.kind in ("attributes", "slots") or holder.name in ("_parameters", "_buffers"):
            for name, value in holder.read().items():
                (tensors if isinstance(value, torch.Tensor) else others).add(f".{name}")
    return tensors - others


def _gather(value: object, inside: dict[int, object]) -> None:
    """Note a value with the modules, containers and tensors that it has."""
    if id(value) in inside or not isinstance(value, (torch.Tensor, torch.nn.Module, list, tuple, dict)):
        return
    inside[id(value)] = value
    if isinstance(value, torch.nn.Module):
        inside[id(value.__dict__)] = value.__dict__
        for part in (value._modules, value._parameters, value._buffers):
            _gather(part, inside)
    for each in _parts(value):
        _gather(each, inside)


def _parts(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()


def _named(functions: Sequence[Function], function: Function, node: ast.expr, deep: int) -> set[str]:
    """The attributes, with a dot, and names of the module's that something may be of; none where that is not told."""
    while isinstance(node, (ast.Subscript, ast.Call, ast.Attribute)):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARTS:
            node = node.func.value
        elif isinstance(node, ast.Call) and path_of(node.func) in _SAME[:4] and len(node.args) == 1:
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return {f".{node.attr}"} if isinstance(node, ast.Attribute) and path_of(node) else set()
    if not isinstance(node, ast.Name) or not deep or node.id == "self":
        return set()
    if node.id not in locals_of(function):
        return {node.id}
    values = [(function, value) for n in ast.walk(function) for value in _given_to(node.id, n)]
    values += _of_callers(functions, function, node.id)
    found = [_named(functions, caller, value, deep - 1) for caller, value in values]
    return set[str]().union(*found) if found and all(found) else set()


def _given_to(name: str, node: ast.AST) -> list[ast.expr]:
    """What a statement, or a loop, gives a name to mean, or an element of what."""
    if isinstance(node, (ast.For, ast.comprehension)):
        target, value = node.target, node.iter
        while isinstance(target, ast.Tuple):
            at = next((n for n, each in enumerate(target.elts) if _has(each, name)), None)
            if at is None:
                return []
            how = path_of(value.func) if isinstance(value, ast.Call) else ""
            if isinstance(value, ast.Call) and how == "zip" and at < len(value.args):
                value = value.args[at]
            elif isinstance(value, ast.Call) and how == "enumerate" and at == 1:
                value = value.args[0]
            elif not (isinstance(value, ast.Call) and called(value) in _PARTS and at == 1):
                return [ast.Constant(None)]  # not told
            target = target.elts[at]
        return [value] if _has(target, name) else []
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.withitem)):
        other = node.optional_vars if isinstance(node, ast.withitem) else node.target
        return [ast.Constant(None)] if other is not None and _has(other, name) else []
    return [
        value if isinstance(target, ast.Name) else ast.Constant(None)
        for target, value in assigned(node)
        if isinstance(target, (ast.Name, ast.Tuple, ast.List, ast.Starred)) and _has(target, name)
    ]


def _has(target: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target))


def _of_callers(functions: Sequence[Function], function: Function, name: str) -> list[tuple[Function, ast.expr]]:
    """What calls of a function give for one of its arguments."""
    arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    found = list[tuple[Function, ast.expr]]()
    for caller in functions if name in arguments else ():
        for call in (n for n in ast.walk(caller) if isinstance(n, ast.Call) and called(n) == function.name):
            at = arguments.index(name) - (arguments[0] == "self" and isinstance(call.func, ast.Attribute))
            given = [call.args[at]] if 0 <= at < len(call.args) else []
            given += [option.value for option in call.keywords if option.arg == name]
            found += [(caller, value) for value in given or [ast.Constant(None)]]
    return found
