"""Gradients that a graph makes and steps with, set to None around its replays, where a line reads ``p.grad``.

The training is right then: the graph goes on with the memory of its capture. Who logs a gradient's norm finds none.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, MAKERS, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.gradients import nulls
from paramgraph_kit.doctor.observe.held import attributes_of, parameters_at
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.own_regions import Region, parameters_of
from paramgraph_kit.doctor.observe.ran import has_run
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_READ_BY = ("clip_grad_norm_", "clip_grad_norm", "get_total_norm", "clip_grad_value_", "unscale_")
_FUNCTIONS = FUNCTIONS[:2]
_Around = tuple[ast.AST, ...]  # from the file to what a node stands in


def nulled_and_read(region: Region, learning: Collection[object]) -> Iterator[Failure]:
    """Lines that set gradients to None which a graph makes and steps with, where a line behind a replay reads some.

    ``learning``: the parameters of what the lines of its capture name.
    """
    codes = [*codes_of(region)]
    used = {name for code in codes for name in code.co_names}
    used |= {n.attr for s in region.body for n in ast.walk(s) if isinstance(n, ast.Attribute)}
    tree = tree_of(region.code.co_filename)
    if tree is None or not {"backward", "step"} <= used or not learning:
        return
    inside = {(c.co_name, c.co_firstlineno) for c in codes if region.function is not None or c is not region.code}
    captured = range(region.body[0].lineno, (region.body[-1].end_lineno or 0) + 1) if region.body else range(0)
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        rows = [(n, a) for n, a in _with_places(tree, ()) if not _is_captured(n, a, inside, captured)]
        own = [(n, a) for n, a in rows if _is_behind(n, a, region) and not _learns(a, captured)]
        called = {(type(n.func), last_name(n.func)) for n, _ in own if isinstance(n, ast.Call)}
        reads = [(n, a) for n, a in own if isinstance(n, ast.expr) and _reads(n, a)]
        nulled = [(n, a, paths) for n, a in own if (paths := _nulled(n))] if reads else []
        for node, around, paths in nulled:
            function = _function(around)
            lines = [n.lineno for n, a in reads if _function(a) is function or _is_called(n, a, region, called)]
            repeats = any(isinstance(n, LOOPS) for n in around) or _is_called(node, around, region, called)
            if lines and repeats and _are_ours(paths, around, region, learning):
                yield _told(node, around, region, min(lines))  # type: ignore[arg-type]


def _function(around: _Around) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((n for n in reversed(around) if isinstance(n, _FUNCTIONS)), None)


def _told(node: ast.Assign | ast.Call, around: _Around, region: Region, read: int) -> Failure:
    own, text = _function(around), ast.unparse(node)
    at = Frame(display_name(region.code.co_filename), node.lineno, own.name if own is not None else "<module>", text)
    said = f"it sets gradients to None that the graph goes on writing to, and line {read} reads them"
    after = f"{ast.unparse(node.func)}(set_to_none=False)" if isinstance(node, ast.Call) else ""
    after = after or "; ".join(f"{ast.unparse(t)}.zero_()" for t in node.targets)  # type: ignore[union-attr]
    return replace(BY_ID["gradients-rebound"].failure(said, at), fix=f"before  {text}\nafter   {after}")


def _with_places(node: ast.AST, around: _Around) -> Iterator[tuple[ast.AST, _Around]]:
    for child in ast.iter_child_nodes(node):
        yield child, (*around, node)
        yield from _with_places(child, (*around, node))


def _is_captured(node: ast.AST, around: _Around, inside: set[tuple[str, int]], captured: range) -> bool:
    named = {(n.name, n.lineno) for n in around if isinstance(n, _FUNCTIONS)}
    named |= {
        (n.name, min([n.lineno, *(d.lineno for d in n.decorator_list)])) for n in around if isinstance(n, _FUNCTIONS)
    }
    return not named.isdisjoint(inside) or getattr(node, "lineno", 0) in captured


def _is_behind(node: ast.AST, around: _Around, region: Region) -> bool:
    """Whether a line runs behind a capture, as far as the function tells in which that stands."""
    functions = [n for n in around if isinstance(n, _FUNCTIONS)]
    if functions and functions[-1].name in MAKERS:
        return False
    line: int = getattr(node, "lineno", 0)
    own = functions[-1] if functions else None
    if (own.name if own is not None else "<module>") != region.code.co_name:
        return True
    if own is not None and not own.lineno <= region.line <= (own.end_lineno or 0):
        return True
    loops = [n for n in around if isinstance(n, LOOPS)]
    return line > region.line or any(n.lineno <= region.line <= (n.end_lineno or 0) for n in loops)


def _learns(around: _Around, captured: range) -> bool:
    """Whether the loop, or the function, that a line stands in goes backward itself, eagerly."""
    block = next((n for n in reversed(around) if isinstance(n, (*LOOPS, *_FUNCTIONS))), around[0])
    calls = (n for n in ast.walk(block) if isinstance(n, ast.Call) and last_name(n.func) == "backward")
    return any(n.lineno not in captured for n in calls) and not isinstance(block, ast.Module)


def _is_called(node: ast.AST, around: _Around, region: Region, called: Collection[tuple[type, str]]) -> bool:
    """Whether a line stands in a function that has run behind the capture, or that others call."""
    function = _function(around)
    at: int = getattr(node, "lineno", 0)
    is_method = any(function in n.body for n in around if isinstance(n, ast.ClassDef))
    named = (ast.Attribute if is_method else ast.Name), getattr(function, "name", "")
    return function is not None and (named in called or has_run(region.ran, region.code.co_filename, at))


def _nulled(node: ast.AST) -> list[ast.expr]:
    """Whose gradients a statement sets to None: of ``opt.zero_grad()``, ``p.grad = None``."""
    if isinstance(node, ast.Call) and last_name(node.func) == "zero_grad" and isinstance(node.func, ast.Attribute):
        return [node.func.value] if nulls(node) else []
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None:
        return [t.value for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "grad"]
    return []


def _reads(node: ast.expr, around: _Around) -> bool:
    """Whether an expression reads a gradient, and asks for more than whether it is there."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in _READ_BY
    if not isinstance(node, ast.Attribute) or node.attr != "grad" or not isinstance(node.ctx, ast.Load):
        return False
    above = around[-1]
    is_asked = isinstance(above, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in above.ops)
    of_torch = isinstance(node.value, ast.Name) and node.value.id in ("torch", "autograd")
    return not (
        is_asked or of_torch or (isinstance(above, ast.Attribute) and above.attr in ("zero_", "data", "detach_"))
    )


def _are_ours(paths: list[ast.expr], around: _Around, region: Region, learning: Collection[object]) -> bool:
    """Whether they are gradients of what the graph trains, by what names mean, or else by how they are called."""
    mine = {id(p) for p in learning}
    loops = [n for n in around if isinstance(n, ast.For)]
    owner = region.names.get("self")
    own = [n for n in around if isinstance(n, _FUNCTIONS)]
    is_its = bool(own) and own[-1].name == region.code.co_name
    known = region.names if is_its else {"self": owner} if own and own[-1].args.args[:1] else {}
    for path in paths:
        over = [n.iter for n in loops if isinstance(n.target, ast.Name) and ast.unparse(n.target) == ast.unparse(path)]
        path = over[-1] if over else path
        if isinstance(path, ast.Call) and last_name(path.func) == "parameters" and isinstance(path.func, ast.Attribute):
            path = path.func.value
        value = path_value(path, dict(known), region.space)
        if value is not NOTHING:
            if mine & {id(p) for p in parameters_at(value)}:
                return True
            continue
        named = {**region.names, **attributes_of(owner)}.get(last_name(path))
        if named is not None and mine & {id(p) for p in parameters_of({"": named})}:
            return True
    return False
