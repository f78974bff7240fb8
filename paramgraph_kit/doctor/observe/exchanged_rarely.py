"""What a step exchanges now and then, ``if n % 100 == 0``, where a graph reads the tensor, or module, of before."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, here, last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import is_a, is_graph
from paramgraph_kit.doctor.observe.held_objects import methods_by_user, reachable
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.other_ways import LED
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_READS = ("item", "bool", "float", "int", "any", "all", "tolist")


def exchanged_rarely(
    caller: Caller, call: Call, codes: Iterable[CodeType], regions: Iterable[Region], told: Iterable[Failure]
) -> Iterator[Failure]:
    """Lines of methods that ran, in branches which what moves, or is read, decides, and which no call has taken.

    Args:
        caller: who calls the function.
        call: one that only replays.
        codes: the functions that it has run.
        regions: the captures.
        told: what is known already.
    """
    held, ran = [caller.function, *caller.args, *caller.kwargs.values()], {*codes}
    every = [*regions]
    read = {key for r in every if r.values is not None for t in r.values.read() if (key := storage_key(t))}
    moved = {each.name.rpartition(".")[2] for each in call.changes}
    lines = {(f.frame.file, f.frame.line) for f in told if f.frame is not None}
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        for owner in reachable(held) if read else ():
            kind: Any = type(owner)
            methods = {f.__name__: f.__code__ for f in methods_by_user(kind)}
            capture = _capturing(methods)
            asked = {name for code in methods.values() for name in _asked_ahead(code, capture)}
            for code in methods.values():
                if code not in ran or captured_in(code) or not code.co_argcount:
                    continue
                for node in _in_branches(code, moved, capture | asked, owner):
                    value = path_value(node.targets[0], {code.co_varnames[0]: owner}, {})
                    at = frame_at(code, node.lineno)
                    if (at.file, at.line) not in lines and (fix := _fix(node, value, read)):
                        lines.add((at.file, at.line))
                        said = f"{ast.unparse(node.targets[0])} has other memory from here on"
                        text = f"{said}, and the graph reads that of its capture; {LED}"
                        yield replace(BY_ID["stale-input"].failure(text, at), fix=f"before  {at.text}\nafter   {fix}")


def _capturing(methods: dict[str, CodeType]) -> set[str]:
    """The methods that capture, or call one that does."""
    found = {name for name, code in methods.items() if captured_in(code)}
    for _ in methods:
        calls = {name for name, code in methods.items() if not found.isdisjoint(code.co_names)}
        if calls <= found:
            break
        found |= calls
    return found


def _asked_ahead(code: CodeType, capture: set[str]) -> Iterator[str]:
    """The attributes that decide whether a method captures: who sets one has it captured again."""
    for branch in (n for n in nodes_of(code) if isinstance(n, ast.If)):
        calls = {last_name(n.func) for s in branch.body for n in ast.walk(s) if isinstance(n, ast.Call)}
        if not capture.isdisjoint(calls) or captured_in(code):
            yield from (n.attr for n in ast.walk(branch.test) if isinstance(n, ast.Attribute))


def _in_branches(code: CodeType, moved: set[str], anew: set[str], owner: Any) -> Iterator[ast.Assign]:
    """What gives an attribute something that is computed there; ``anew``: what a branch names that captures again."""
    nodes = [*nodes_of(code)]
    own = code.co_varnames[0]
    for branch in (n for n in nodes if isinstance(n, ast.If) and _turns(n.test, moved)):
        inside = [n for s in (*branch.body, *branch.orelse) for n in here(s, FUNCTIONS)]
        given = [n for n in inside if isinstance(n, ast.Assign) and len(n.targets) == 1]
        named = [n for n in inside if isinstance(n, ast.Attribute)]
        if any(n.attr in anew or _has_graph(path_value(n, {own: owner}, {})) for n in named):
            continue
        paths = [ast.unparse(n.targets[0]) for n in given]
        for node, path in zip(given, paths, strict=True):
            is_own = isinstance(node.targets[0], ast.Attribute) and path == f"{own}.{node.targets[0].attr}"
            if is_own and isinstance(node.value, (ast.Call, ast.BinOp, ast.UnaryOp)) and paths.count(path) == 1:
                yield node


def _turns(test: ast.expr, moved: set[str]) -> bool:
    """Whether a test may turn out otherwise in a later call: it asks what moves, or what is read from the device."""
    names = {last_name(n) for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    calls = {last_name(n.func) for n in ast.walk(test) if isinstance(n, ast.Call)}
    return not names.isdisjoint(moved) or not calls.isdisjoint(_READS)


def _has_graph(value: Any) -> bool:
    parts = [*value.values()] if type(value) is dict else [*value] if type(value) in (list, tuple) else [value]
    return any(map(is_graph, parts))


def _fix(node: ast.Assign, value: Any, read: set[int]) -> str:
    """What writes into what is there; "" where no graph reads it."""
    path, new = ast.unparse(node.targets[0]), node.value
    if is_a(value, torch.Tensor):
        return f"{path}.copy_({ast.unparse(new)})" if storage_key(value) in read else ""
    if not is_a(value, torch.nn.Module) or read.isdisjoint(map(storage_key, value.parameters())):
        return ""
    copied = isinstance(new, ast.Call) and last_name(new.func) == "deepcopy" and len(new.args) == 1
    other = ast.unparse(new.args[0] if copied and isinstance(new, ast.Call) else new)
    return f"{path}.load_state_dict({other}.state_dict())"
