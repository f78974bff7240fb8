"""What of a file a graph may run that ends before a line: what stands ahead of it in a step, and what that calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.rewrite.source.edits import Function, Source
from paramgraph_kit.rewrite.source.moving import stored

_BY_NO_NAME = ("forward", "__call__")  # `self.net(x)` runs them
_COUNT = ("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select")
_AS_LARGE = frozenset("clone contiguous detach flatten float half int long squeeze t to transpose".split())  # noqa: SIM905
_OF_THE_HOST = ("shape", "dtype", "device", "ndim", "layout", "size", "dim", "numel", "is_cuda")


def is_read_ahead(source: Source, function: Function | None, name: str, line: int, entry: str) -> bool:
    """Whether values of an attribute of this name may be read ahead of a line, in the graph of an ``entry``."""
    every = _ahead(source, function, line, entry)
    if every is None:  # who knows what runs ahead of it: any other function may
        nodes = (n for n in ast.walk(source.tree) if isinstance(n, ast.Attribute))
        every = [n for n in nodes if n.lineno < line or source.function_of(n) is not function]
    return any(isinstance(n, ast.Attribute) and n.attr == name and _reads(source, n) for n in every)


def _reads(source: Source, node: ast.Attribute) -> bool:
    """Whether a tensor is read there, and not only asked for its size, or whether there is one."""
    above = source.parents.get(node)
    if isinstance(above, ast.AugAssign) and above.target is node:
        return True
    asked = isinstance(above, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in above.ops)
    asked |= isinstance(above, ast.Attribute) and above.attr in _OF_THE_HOST
    return isinstance(node.ctx, ast.Load) and not asked


def _ahead(source: Source, function: Function | None, line: int, entry: str) -> list[ast.AST] | None:
    """What a graph may run of a file ahead of a line of a function; None where the way to it is not known."""
    functions = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    named = [each for each in functions if each.name == entry]
    if function is None or not named:
        return None
    lead = {function.name}
    while more := {each.name for each in functions if _mentioned([each]) & lead} - lead:
        lead |= more
    found, waiting, seen = list[ast.AST](), [*named], list[Function]()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.append(each)
        if each is function:
            found += [n for n in ast.walk(each) if getattr(n, "lineno", line) < line]
            continue
        places = [n for n in ast.walk(each) if _name(n) in lead]
        last = max((getattr(n, "lineno", 0) for n in places), default=0)  # that line gives it its arguments
        found += [n for n in ast.walk(each) if 0 < getattr(n, "lineno", 0) <= last and n not in places]
        waiting += [other for other in functions if other.name in {_name(n) for n in places}]
    if function not in seen:
        return None
    reached = _reached(functions, {*map(_name, found), *_BY_NO_NAME} - lead, lead)
    return found + [n for each in functions if each.name in reached for n in ast.walk(each)]


def named_by(source: Source, nodes: Iterable[ast.AST]) -> set[str]:
    """Names in nodes, and in the functions, methods and properties of the file that these name."""
    functions = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    return _reached(functions, {*map(_name, nodes)} - {""}, set())


def _reached(functions: list[Function], names: set[str], without: set[str]) -> set[str]:
    reached = {*names}
    while more := _mentioned(each for each in functions if each.name in reached) - without - reached:
        reached |= more
    return reached


def _mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for node in nodes for n in ast.walk(node) if (name := _name(n))}


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def sized_by_values(source: Source, function: Function | None, value: ast.expr, masks: Iterable[str]) -> bool:
    """Whether the device decides how large a value is: ``(d < r).nonzero()``, ``x[x > 0]``, also by local names."""
    assigns = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    waiting, known, of_bool = [value], set[str](), {*masks}
    while waiting:
        nodes = [*ast.walk(waiting.pop())]
        if any(_is_sized(n, of_bool) for n in nodes):
            return True
        names = {n.id for n in nodes if isinstance(n, ast.Name)} - known
        known |= names
        waiting += [n.value for n in assigns if names & stored(n.targets)]
    return False


def _is_sized(node: ast.AST, masks: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return _counts(node)
    picks = node.slice if isinstance(node, ast.Subscript) else None
    inverted = isinstance(picks, ast.UnaryOp) and isinstance(picks.op, ast.Invert)
    return inverted or isinstance(picks, ast.Compare) or (isinstance(picks, ast.Name) and picks.id in masks)


def is_sized(value: ast.expr) -> bool:
    """Whether the device counts the places of what an expression comes to: ``mask.nonzero().t()``, no sum of it."""
    while isinstance(value, ast.Call):
        if _counts(value):
            return True
        if not isinstance(value.func, ast.Attribute) or value.func.attr not in _AS_LARGE:
            return False
        value = value.func.value
    return False


def _counts(call: ast.Call) -> bool:
    name = _name(call.func)
    return name in _COUNT or (name == "where" and len(call.args) == 1 and not call.keywords)


def begins_with_none(tree: ast.AST, name: str) -> bool:
    """Whether a line gives an attribute of this name None: a first call may find no tensor to write to."""
    pairs = ((to, value) for n in ast.walk(tree) for to, value in pairs_of(n) if isinstance(value, ast.Constant))
    return any(value.value is None and getattr(to, "attr", "") == name for to, value in pairs)
