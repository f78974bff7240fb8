"""Gradients that a function leaves behind, and code around it that sets them to None between its calls.

A graph writes to the gradients' memory of its capture. Whoever sets ``p.grad`` to None between replays takes the
parameter off that memory: the replay fills it, and the optimizer finds nothing. That happens outside of the function,
so it is read from the source: a ``zero_grad()`` of these parameters, in a loop that also calls the function or replays
a graph. Names are looked up, so code about other parameters or other functions is not meant.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.doctor.explain.syntax import (
    FUNCTIONS,
    LOOPS,
    defines,
    every,
    here,
    last_line,
    last_name,
    nodes_of,
    tree_of,
)
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.ahead_of_captures import ahead_of_captures
from paramgraph_kit.doctor.observe.held import unbound
from paramgraph_kit.doctor.observe.places import codes_in, line_of
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import display_name, is_cell, is_library
from paramgraph_kit.trace.model import Failure, Frame

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.loop_state import Given
    from paramgraph_kit.doctor.observe.observer import Step

CODE = "gradients-rebound"
_ON = "gradients to None that a graph of this function goes on writing to"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Left:
    """What one call did to gradients that are still there after it."""

    made: tuple[torch.Tensor, ...] = ()  # parameters that had none before
    added: tuple[torch.Tensor, ...] = ()  # those that had one before, to which the call wrote
    stepped: bool = False  # an optimizer has used them inside
    zeroed: bool = False  # they are set to None inside, so nothing from outside matters


NOTHING_LEFT = Left()


@dataclass(frozen=True, slots=True)
class Scope:
    """A piece of source, and what its names mean."""

    file: str
    body: ast.Module | _Function
    names: dict[str, Any]


def around(function: Callable[..., Any]) -> list[Scope]:
    """Where a function may be called from: what is running now, and the file or the notebook that defines it."""
    found: list[Scope] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            names = {**frame.f_globals, **frame.f_locals}
            tree, name = tree_of(file), frame.f_code.co_name
            bodies = _bodies(tree) if tree is not None else ()
            found += [Scope(file, body, names) for body in bodies if defines(body, frame.f_code)]
            if name == "<module>" and tree is not None:
                found.append(Scope(file, tree, names))
        frame = frame.f_back
    function, _ = unbound(function, {})
    inner = getattr(function, "__func__", function)
    if not isinstance(inner, torch.nn.Module) and not hasattr(inner, "__code__"):  # an object that can be called
        inner = vars(type(inner)).get("__call__")
    with suppress(ValueError):  # it wraps itself
        inner = inspect.unwrap(inner)  # of `@torch.no_grad()`, whose lines are torch's
    code, space = getattr(inner, "__code__", None), getattr(inner, "__globals__", None)
    if code is not None and space is not None and not is_library(code.co_filename):
        cells = [file for file in list(linecache.cache) if is_cell(file)] if is_cell(code.co_filename) else []
        for file in dict.fromkeys((code.co_filename, *cells)):
            if (tree := tree_of(file)) is not None:
                found.append(Scope(file, tree, space))
                for body in _bodies(tree):
                    own = _own_names(body)
                    found.append(Scope(file, body, {k: v for k, v in space.items() if k not in own}))
    return found


def problems(
    left: Left, scopes: Iterable[Scope], function: Any, own: Iterable[CodeType], nulled: Iterable[Given] = ()
) -> list[Failure]:
    """Lines outside of the function that set its gradients to None between calls.

    ``nulled``: lines that do so of something, where its name alone does not tell of what.
    """
    meant = left.added if left.stepped else (*left.added, *left.made)
    if not meant or left.zeroed:
        return []
    mine = [(code.co_filename, code.co_firstlineno, last_line(code)) for code in own]
    rule, found = BY_ID[CODE], dict[tuple[str, int], Failure]()
    ours = {id(p) for p in meant}
    spots = [
        (scope.file, line, getattr(scope.body, "name", "<module>"))
        for scope in scopes
        for line in Search(scope.names, function, ours).lines(scope.body)
    ]
    inside = Search({}, function, ours)
    spots += [(g.file, g.node.lineno, g.function) for g in nulled if inside.has_ours(g.owner)]  # type: ignore[attr-defined]
    for file, line, name in spots:
        inner = any(file == of and first <= line <= last for of, first, last in mine)
        if not inner and not ahead_of_captures(file, line, function):
            text = f"sets {len(meant)} {_ON}"
            frame = Frame(display_name(file), line, name, linecache.getline(file, line).strip())
            found.setdefault((file, line), replace(rule.failure(text, frame), fix=_in_place(frame, file)))
    return list(found.values())


def nulls_around(failure: Failure) -> bool:
    """Whether it is told of a line around the function: no line of its own mends that."""
    return failure.code == CODE and failure.message.endswith(_ON)


def _in_place(frame: Frame, file: str) -> str:
    """What such a line becomes, so that the graph goes on with the same tensors."""
    tree = tree_of(file)
    nodes = (n for n in (ast.walk(tree) if tree is not None else ()) if getattr(n, "lineno", 0) == frame.line)
    before, after = frame.text, "the same in place, `p.grad.zero_()`"
    for node in nodes:
        if isinstance(node, ast.Call) and last_name(node.func) == "zero_grad":
            before, after = ast.unparse(node), f"{ast.unparse(node.func)}(set_to_none=False)"
        elif nulled := _nulled(node):
            before, after = ast.unparse(node), "; ".join(f"{ast.unparse(each)}.zero_()" for each in nulled)
    return f"before  {before}\nafter   {after}: in place, in the memory that the graph adds to"


def note(left: Left, zeroed_at: str = "") -> str:
    """What is good to know of gradients that somebody outside uses, or zeroes; "" where there is nothing to say.

    ``zeroed_at`` is a line around the function that sets them to None between its calls.
    """
    if left.zeroed or not left.made:
        return ""
    if left.stepped:
        around = f" ({zeroed_at} does that between calls, and reaches none of a graph's)" if zeroed_at else ""
        return (
            f"it makes {len(left.made)} gradients and steps with them, and zeroes none itself{around}: captured while "
            "`p.grad` is None, right behind zero_grad(), each replay makes them anew; where a warm-up has left some, "
            "the graph adds to these at each replay. zero_grad() in it, ahead of its backward pass, is right either way"
        )
    return (
        f"it makes {len(left.made)} gradients: a graph fills these very tensors at each replay, so p.grad must stay "
        "between replays; zero_grad() sets it to None, zero_grad(set_to_none=False) does not"
    )


def nulls(call: ast.Call) -> bool:
    """Whether a zero_grad() sets gradients to None."""
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "set_to_none")]
    return not (given and isinstance(given[0], ast.Constant) and given[0].value is False)


def sets_to_none(codes: Iterable[CodeType]) -> bool:
    """Whether functions set gradients to None themselves, without zero_grad()."""
    for code in codes:
        tree = tree_of(code.co_filename)
        for node in ast.walk(tree) if tree is not None else ():
            if code.co_firstlineno <= getattr(node, "lineno", -1) <= last_line(code) and _nulled(node):
                return True
    return False


def unscaled(steps: Iterable[Step]) -> list[Failure]:
    """Lines that unscale gradients for a step that is taken elsewhere, which unscales them once more.

    That they are unscaled is a note in the scaler's Python, which no replay makes, and ``update()`` wipes the first.
    """
    steps = list(steps)
    ran = codes_in(step.place.stack for step in steps)
    spots = {spot for step in steps if "unscale" in step.name for spot in step.place.stack}
    unscaling = {(code, line_of(code, at)) for code, at in spots}  # a scaler that is not enabled does nothing
    nodes = ((c, n) for c in ran for n in nodes_of(c))
    calls = [(c, n) for c, n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    if any(last_name(node.func) == "step" for _, node in calls):  # it may be the scaler's, by another name
        return []
    found: dict[tuple[str, int], Failure] = {}
    for code, node in calls:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if last_name(node.func) != "unscale_" or not any((code, line) in unscaling for line in lines):
            continue
        line = ast.unparse(node)
        said = "a replay does not note that gradients are unscaled, and a step outside of it unscales them once more"
        words = f"before  {line}\nafter   {line} outside of the capture: right behind g.replay(), ahead of the step"
        failure = BY_ID["host-counter"].failure(said, frame_at(code, node.lineno))
        found[code.co_filename, node.lineno] = replace(failure, fix=words)
    return list(found.values())


class Search:
    """Looks at source around a function: for its calls, and for gradients that are set to None between them."""

    def __init__(self, names: dict[str, Any], function: Any, parameters: set[int]) -> None:
        self.names, self.function, self.parameters = names, function, parameters

    def lines(self, body: ast.Module | _Function) -> list[int]:
        """The lines that do so."""
        found: set[int] = set()
        for node in (n for statement in body.body for n in here(statement)):
            if isinstance(node, LOOPS):
                inside = [n for statement in node.body for n in here(statement)]
                if any(map(self._runs, inside)) and not any(map(_captures, inside)):
                    found |= {n.lineno for n in inside if isinstance(n, (ast.stmt, ast.expr)) and self._nulls(n)}
        for block in _blocks(body):
            found |= self._between(block)
        return sorted(found)

    def _between(self, block: list[ast.stmt]) -> set[int]:
        """The same for statements that follow one another."""
        simple = [s for s in block if isinstance(s, (ast.Expr, ast.Assign, ast.AugAssign))]
        runs = [s.lineno for s in simple if any(map(self._runs, here(s)))]
        nulls = [s.lineno for s in simple if any(map(self._nulls, here(s)))]
        return {line for line in nulls if runs and runs[0] < line < runs[-1]}

    def calls(self, node: ast.AST) -> bool:
        """Whether something is a call of the function."""
        if not isinstance(node, ast.Call):
            return False
        owner = getattr(self.function, "__self__", None)
        if isinstance(node.func, ast.Attribute) and owner is not None and node.func.attr == self.function.__name__:
            return self._value(node.func.value) is owner
        return _same(self._value(node.func), self.function)

    def _runs(self, node: ast.AST) -> bool:
        return self.calls(node) or (isinstance(node, ast.Call) and last_name(node.func) == "replay")

    def _nulls(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and last_name(node.func) == "zero_grad" and isinstance(node.func, ast.Attribute):
            return nulls(node) and self.has_ours(self._value(node.func.value))
        return any(self.has_ours(self._value(target.value)) for target in _nulled(node))

    def has_ours(self, value: Any) -> bool:
        """Whether an optimizer, a module or a parameter is about the gradients in question."""
        if isinstance(value, torch.optim.Optimizer):
            return any(id(p) in self.parameters for group in value.param_groups for p in group["params"])
        if isinstance(value, torch.nn.Module):
            return any(id(p) in self.parameters for p in value.parameters())
        return id(value) in self.parameters

    def _value(self, node: ast.expr) -> Any:
        """What names and attributes mean, without running anything but a look into dictionaries."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            if isinstance(owner, torch.nn.Module):
                parts = (owner._parameters, owner._modules, owner.__dict__)
                return next((part[node.attr] for part in parts if node.attr in part), None)
            return getattr(owner, "__dict__", {}).get(node.attr)
        return None


@lru_cache(64)
def _bodies(tree: ast.Module) -> tuple[_Function, ...]:
    return tuple(n for n in every(tree) if isinstance(n, _Function))


@lru_cache(4096)
def _own_names(body: _Function) -> frozenset[str]:
    """Names that mean something else inside a function than outside."""
    arguments = body.args
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    stored = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    outer = {name for n in ast.walk(body) if isinstance(n, ast.Global) for name in n.names}
    defined = {n.name for n in ast.walk(body) if isinstance(n, _Function) and n is not body}
    return frozenset(names | stored | defined) - outer


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements, without those of functions that are only defined there."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
            for statement in block:
                if not isinstance(statement, FUNCTIONS):
                    yield from _blocks(statement)


def _same(value: Any, function: Any) -> bool:
    if value is None:
        return False
    return value is function or (value == function if hasattr(function, "__func__") else False)


def _captures(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("graph", "capture", "capture_begin")


def _nulled(node: ast.AST) -> list[ast.Attribute]:
    """What ``p.grad = None`` assigns to."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None):
        return []
    return [target for target in node.targets if isinstance(target, ast.Attribute) and target.attr == "grad"]
