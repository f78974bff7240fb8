"""Entries and attributes that a capture reads and gives something else: what they had is gone, and keeping it is vain.

A graph that kept the tensor of its capture would read that at each replay, and the state would never move on.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, elements_of, last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import Names, Use
from paramgraph_kit.doctor.observe.carried_states import made_of_itself
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.made_first import GROW, ROWS
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.lines import frame_of_line
from paramgraph_kit.trace.model import Failure, Frame

_REBOUND = "is another tensor from here on, and each replay reads the one of the capture"


def as_rebound(failure: Failure, region: Region | None) -> Failure:
    """What is told of something gone, where its own function gives the entry that it reads there something else."""
    frame = failure.frame
    if frame is None:
        return failure
    is_own = region is not None and display_name(region.code.co_filename) == frame.file
    file = region.code.co_filename if is_own and region is not None else frame.file
    for path, node, name in _rebound(file, frame):
        at = replace(frame_of_line(file, node.lineno), function=name)
        told = BY_ID["stale-input"].failure(f"{path} {_REBOUND}", at)
        return replace(told, fix=f"before  {ast.unparse(node)}\nafter   {_in_place(node, path)}")
    return failure


def is_rebound(failure: Failure) -> bool:
    """Whether it tells of that."""
    return failure.code == "stale-input" and failure.message.endswith(_REBOUND)


def entries_carried_on(bodies: Collection[tuple[CodeType, list[ast.AST], Names]]) -> Iterator[Failure]:
    """Lines of a capture that give all entries of a dictionary, or list, what is made of them.

    Where others of its lines fill it, too, they may begin it anew.
    """
    for code, inside, names in bodies:
        given = [n for n in inside if isinstance(n, (ast.Assign, ast.Expr))]
        for node in given:
            if (holder := _holder(node, inside)) is None or not _has_tensors(Use(code, holder, False, names).value()):
                continue
            path = ast.unparse(holder)
            others = (n for _, lines, _ in bodies for n in lines if n is not node and _fills(n, path))
            if next(others, None) is None:
                whole = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else path
                told = BY_ID["stale-input"].failure(f"{whole} {_REBOUND}", frame_at(code, node.lineno))
                yield replace(told, fix=f"before  {ast.unparse(node)}\nafter   {_in_place(node, path)}")


def _holder(node: ast.Assign | ast.Expr, inside: list[ast.AST]) -> ast.expr | None:
    """What keeps the entries that a statement makes of themselves, where it outlives the lines."""
    if (table := _updated(node)) is not None:
        return table if isinstance(table, ast.Attribute) and _reads_entries(node, ast.unparse(table)) else None
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(node, ast.Assign) or target is None or not made_of_itself(node, ast.unparse(target), inside):
        return None
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
        return target.value if isinstance(target.value, ast.Attribute) else None
    is_whole = isinstance(target, ast.Attribute) and isinstance(node.value, (ast.DictComp, ast.ListComp))
    return target if is_whole and _reads_entries(node.value, ast.unparse(target)) else None


def _reads_entries(node: ast.AST, path: str) -> bool:
    """Whether the tensors of a holder are read there, and not its keys alone."""
    calls = [n.func for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    read = [n.value for n in calls if isinstance(n, ast.Attribute) and n.attr in ("items", "values")]
    read += [n.value for n in ast.walk(node) if isinstance(n, ast.Subscript)]
    loops = [n for n in ast.walk(node) if isinstance(n, ast.ListComp)]
    read += [part for n in loops for each in n.generators for part in ast.walk(each.iter) if isinstance(part, ast.expr)]
    return any(ast.unparse(each) == path for each in read)


def _has_tensors(value: Any) -> bool:
    parts = [*value.values()] if type(value) is dict else value if type(value) is list else []
    return bool(parts) and all(is_a(part, torch.Tensor) for part in parts)


def _fills(node: ast.AST, path: str) -> bool:
    """Whether a node gives this holder, or an entry of it, something, or calls a method of it that may."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == path:
        return node.func.attr in ("clear", "pop", "setdefault", "append", "insert", "extend")
    targets = node.targets if isinstance(node, ast.Assign) else []
    held = [
        getattr(part, "value", part) if isinstance(part, ast.Subscript) else part
        for each in targets
        for part in elements_of(each)
    ]
    return any(ast.unparse(each) == path for each in held)


def _rebound(file: str, frame: Frame) -> Iterator[tuple[str, ast.stmt, str]]:
    """What a line reads that it, or one behind it, gives something else, and none ahead of it; with its function."""
    functions = [n for n in ast.walk(tree_of(file) or ast.Module([], [])) if isinstance(n, FUNCTIONS[:2])]
    around = [n for n in functions if n.lineno <= frame.line <= (n.end_lineno or n.lineno)]
    if not around:
        return
    function = max(around, key=lambda n: n.lineno)
    nodes = [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.Expr))]
    stored = [(path, n) for n in nodes for path in _given(n)]
    lines = [n for n in nodes if n.lineno <= frame.line <= (n.end_lineno or n.lineno)]
    parts = [n for line in lines for n in ast.walk(line) if isinstance(n, (ast.Subscript, ast.Attribute))]
    read = {ast.unparse(n) for n in parts if isinstance(n.ctx, ast.Load)}
    first = min((n.lineno for n in lines), default=0)
    ahead = {path for path, n in stored if n.lineno < first}
    yield from ((path, n, function.name) for path, n in stored if path in read - ahead and n.lineno >= first)


def _given(node: ast.Assign | ast.Expr) -> Iterator[str]:
    """The entries and attributes that a statement gives something else; a dictionary's ``update``, all of its own."""
    if isinstance(node, ast.Assign):
        for target in (part for each in node.targets for part in elements_of(each)):
            if isinstance(target, (ast.Subscript, ast.Attribute)):
                yield ast.unparse(target)
    elif (table := _updated(node)) is not None:
        yield ast.unparse(table)


def _updated(node: ast.stmt) -> ast.expr | None:
    """The dictionary of a statement ``table.update({...})``."""
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        return call.func.value if len(call.args) == 1 and isinstance(call.args[0], (ast.Dict, ast.DictComp)) else None
    return None


def _in_place(node: ast.stmt, path: str) -> str:
    """The same, written to what was read."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        new = ast.unparse(node.value.args[0])
        return f"for key, new in {new}.items(): {path}[key].copy_(new)"
    if not isinstance(node, ast.Assign):
        return ""
    value, parts = ast.unparse(node.value), [ast.unparse(each) for each in elements_of(node.targets[0])]
    if len(parts) > 1:
        return f"for old, new in zip(({', '.join(parts)}), [t.clone() for t in {value}]): old.copy_(new)"
    if isinstance(node.value, ast.DictComp):
        return f"for key, new in {value}.items(): {path}[key].copy_(new)"
    if isinstance(node.value, (ast.ListComp, ast.List, ast.Tuple)):
        return f"for old, new in zip({path}, {value}): old.copy_(new)"
    if isinstance(node.value, ast.Call) and last_name(node.value.func) in GROW:
        if any(isinstance(n, ast.Subscript) and ast.unparse(n.value) == path for n in ast.walk(node.value)):
            kept = f"{path}.copy_(new) if {path}.shape == new.shape else new"  # a window, which leaves out the oldest
            return f"new = {value}; {path} = {kept}; and it has its last size ahead of the capture"
        return f"{path} as large as it gets, made ahead of the capture: {ROWS}"
    each = "; where that is a tuple, each of its parts so" if isinstance(node.value, ast.Call) else ""
    return f"{parts[0]}.copy_({value}){each}"
