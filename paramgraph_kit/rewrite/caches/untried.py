"""Lines that read a part which grows, and that no step has run: nobody knows what they do with a whole.

``if t > 1: scores = scores + causal[:t, :t]`` of a prefill is such a line where only steps of one token were tried. Its
branch is given the part that is written, as ever.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.rewrite.caches.growths import Key
from paramgraph_kit.rewrite.caches.tracked import Apart, Tracking
from paramgraph_kit.rewrite.source.edits import COMPOUND, Function, Source, path_of, scope_of, within


@dataclass(slots=True)
class Held:
    """What a name holds that grows: the parts that it is of, and which of its dimensions, from the last one."""

    parts: set[Key] = field(default_factory=set)
    dims: set[int] = field(default_factory=set)


Names = dict[str, Held]


@dataclass(slots=True)
class Tried:
    """What has run of some files."""

    lines: set[tuple[str, int]] = field(default_factory=set)
    names: dict[tuple[str, str, int], Names] = field(default_factory=dict)  # by the scopes of functions


@contextmanager
def tried(tracking: Tracking) -> Iterator[Tried]:
    """Note what runs while this lasts."""
    found, before = Tried(), sys.gettrace()

    def inside(frame: types.FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        found.lines.add((code.co_filename, frame.f_lineno))
        for name, value in frame.f_locals.items() if event == "return" else ():
            if (growth := tracking.growths.of(value)) is not None:
                scope = code.co_filename, code.co_name, code.co_firstlineno
                held = found.names.setdefault(scope, {}).setdefault(name, Held())
                held.parts |= growth.parts
                held.dims.add(growth.dim)
        return inside

    sys.settrace(lambda frame, event, argument: inside if frame.f_code.co_filename in tracking.sources else None)
    try:
        yield found
    finally:
        sys.settrace(before)


def refuse(tracking: Tracking, found: Tried) -> None:
    """No whole stands for parts that a line reads which has not run, unless its branch can be given the parts alone."""
    for source in tracking.sources.values():
        for function in (n for n in ast.walk(source.tree) if isinstance(n, Function)):
            names = found.names.get(scope_of(source, function), {})
            for node in (n for part in function.body for n in within(part) if names):
                if not _is_untried(source, node, tracking, found):
                    continue
                if _is_for_nobody(source, function, node, tracking.sources.values()):
                    continue
                read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
                if names.keys() & read and (apart := _apart(source, function, node, names, found)) is not None:
                    tracking.apart.setdefault(apart[0], apart[1])
                    continue
                for key in (key for name in names.keys() & read for key in names[name].parts):
                    part, line = tracking.growths.parts[key], getattr(node, "lineno", key.line)
                    part.refused = part.refused or f"line {line} reads it, and was not tried"


def _apart(
    source: Source, function: Function, node: ast.AST, names: Names, found: Tried
) -> tuple[ast.stmt, Apart] | None:
    """The first line of a branch that has not run, with what it and the lines behind it read that grows.

    There what is written of a buffer stands for all of it: ``n = int(there.sum())``, ``k = k[..., :n, :]``.
    """
    above = [*source.above(node)]
    if not isinstance(node, ast.stmt) or any(isinstance(each, (ast.For, ast.While, ast.Try)) for each in above):
        return None
    for branch in reversed([each for each in above if isinstance(each, ast.If)]):
        body = next((b for b in (branch.body, branch.orelse) if any(node in [*within(part)] for part in b)), [])
        inside = [n for part in body for n in within(part)]
        ran = {n.lineno for n in inside if isinstance(n, ast.stmt) and (source.file, n.lineno) in found.lines}
        asked = {n.id for n in ast.walk(branch.test) if isinstance(n, ast.Name)}
        if ran or not inside or asked & names.keys():
            continue
        later = [n for part in function.body for n in within(part) if isinstance(n, ast.Name)]
        before = {n.id for n in later if n.lineno < branch.lineno and isinstance(n.ctx, ast.Store)}
        before |= {arg.arg for arg in ast.walk(function) if isinstance(arg, ast.arg)}
        read = {n.id for n in later if n.lineno > branch.lineno and isinstance(n.ctx, ast.Load)} & names.keys()
        held = {name: names[name] for name in sorted(read & before)}
        if not held or any(len(each.dims) != 1 for each in held.values()):
            return None
        parts = {key for each in held.values() for key in each.parts}
        return body[0], Apart(branch, {name: min(each.dims) for name, each in held.items()}, parts)
    return None


def _is_untried(source: Source, node: ast.AST, tracking: Tracking, found: Tried) -> bool:
    if isinstance(node, ast.stmt):
        ran = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return not isinstance(node, COMPOUND) and not any((source.file, line) in found.lines for line in ran)
    above = source.parents.get(node)
    if not isinstance(above, ast.IfExp) or node is above.test or isinstance(node, (ast.Name, ast.Attribute)):
        return False
    known = (*tracking.growths.made, *tracking.indexes, *tracking.makers)
    return not any(tracking.node(key) is each for each in ast.walk(node) for key in known if key.file == source.file)


def _is_for_nobody(source: Source, function: Function, node: ast.AST, sources: Collection[Source]) -> bool:
    """Whether a line is below ``if mask is not None:`` of an argument that nobody gives."""
    above = [each for each in source.above(node) if isinstance(each, ast.If)]
    tests = [each.test for each in above if any(node is n for part in each.body for n in ast.walk(part))]
    named = {name for test in tests if (name := _asked_for(test))}
    spec = function.args
    own = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    without = [*own[len(own) - len(spec.defaults) :], *(arg.arg for arg in spec.kwonlyargs)]
    defaults = dict(zip(without, [*spec.defaults, *spec.kw_defaults], strict=True))
    optional = {n for n in named if isinstance(d := defaults.get(n), ast.Constant) and d.value is None}
    every = [n for each in sources for n in ast.walk(each.tree)]
    others = {n.name for n in every if isinstance(n, (Function, ast.ClassDef)) and n is not function}
    calls = [n for n in every if isinstance(n, ast.Call) and _may_be_of(n, function.name, others)]
    places = {name: own.index(name) - (own[0] in ("self", "cls")) if name in own else len(own) for name in optional}
    return any(not any(_gives(call, name, place) for call in calls) for name, place in places.items())


def _asked_for(test: ast.expr) -> str:
    """``mask`` of ``mask is not None``."""
    asks = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot)
    return test.left.id if asks and isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) else ""


def _may_be_of(call: ast.Call, function: str, others: Collection[str]) -> bool:
    """Whether a call may be one of this function, or of a module whose ``forward`` it is."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called == function or function not in ("forward", "__call__"):
        return called == function
    of_torch = path_of(call.func).partition(".")[0] in ("torch", "nn", "F", "np", "math")
    return not of_torch and called not in others and not hasattr(torch.Tensor, called) and not hasattr(builtins, called)


def _gives(call: ast.Call, name: str, place: int) -> bool:
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    return starred or len(call.args) > place or any(each.arg in (None, name) for each in call.keywords)
