"""Advice for a method that a step calls last and that counts what the device finds: ``self.ended += len(ids)``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.state.groups import calls_of
from paramgraph_kit.rewrite.source.edits import Function, on_one_line, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called

_CODES = ("dynamic-shape", "branch-frozen", "data-dependent-branch", "sync-item", "scalar-assignment", "host-counter")


def called_last(place: Place) -> str:
    """All of its lines are as they should be behind a launch, which its step ends with by then."""
    function = place.source.function_of(place.statement)
    owner = place.source.parents.get(function) if function is not None else None
    if place.failure.code not in _CODES or function is None or not isinstance(owner, ast.ClassDef):
        return ""
    if function.name == place.entry or not any(_counts(n) for part in function.body for n in within(part)):
        return ""
    calls = [*calls_of(place, function, owner.name)]
    caller = place.source.function_of(calls[0]) if len(calls) == 1 else None
    if caller is None or not _is_last(caller, calls[0]):
        return ""
    text = on_one_line(place.text(calls[0]))
    return f"line {calls[0].lineno}, `{text}`, belongs behind the launch: take it out of the step, and call it there"


def _counts(node: ast.AST) -> bool:
    """``self.ended += len(ids)``, ``self.ended += ids.numel()``, ``self.ended += ids.shape[0]``."""
    if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Attribute):
        return False
    sizes = (called(n) in ("len", "numel", "size") for n in ast.walk(node.value) if isinstance(n, ast.Call))
    return any(sizes) or any(isinstance(n, ast.Attribute) and n.attr == "shape" for n in ast.walk(node.value))


def _is_last(caller: Function, call: ast.Expr) -> bool:
    """Whether nothing but what the step returns stands behind it, which are tensors that it may write in place."""
    if call not in caller.body or not isinstance(call.value, ast.Call) or call.value.args or call.value.keywords:
        return False
    behind = caller.body[caller.body.index(call) + 1 :]
    return all(isinstance(n, ast.Return) and (n.value is None or _is_held(n.value)) for n in behind)


def _is_held(value: ast.expr) -> bool:
    if isinstance(value, (ast.Tuple, ast.List)):
        return all(map(_is_held, value.elts))
    return isinstance(value, ast.Attribute) and bool(path_of(value))
