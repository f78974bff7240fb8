"""Which names and entries around a step are its results, and those that a round leaves to the rounds behind it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, here, spans
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.kept_if_better import may_be
from paramgraph_kit.doctor.observe.read_later import is_about

LOOKS = ("detach", "view", "reshape", "squeeze", "unsqueeze", "flatten", "view_as")  # at the same memory
_SAME_MEMORY = ("data", "T", "mT")
_GIVE = ("items", "values")
Holds = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Results:
    """What names mean that are results of a function, or parts of one; ``calls``: whether something is its call."""

    names: dict[str, Any]
    calls: Callable[[ast.AST], bool]
    result: Any
    holds: Holds

    def has(self, node: ast.expr) -> bool:
        """Whether an expression is a result, or a part of one, that a replay writes."""
        part = self.of(node)
        return part is not NOTHING and self.holds(part)

    def of(self, node: ast.expr) -> Any:
        """The result, or the part of one, that an expression is; a whole of which it is not known which part."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, NOTHING)
        if self.calls(node):
            return self.result
        if isinstance(node, ast.Call):
            looks = isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS
            base = self.of(node.func.value) if looks else NOTHING  # type: ignore[attr-defined]
            return base if is_a(base, torch.Tensor) else NOTHING
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            base = self.of(node.value)
            return NOTHING if base is NOTHING else part_of(base, node)
        return NOTHING

    def parts(self, node: ast.expr) -> list[Any]:
        """What each argument is that an expression stands for: ``step(x)``, ``*step(x)``."""
        if not isinstance(node, ast.Starred):
            return [self.of(node)]
        whole = self.of(node.value)
        return [*whole] if type(whole) in (tuple, list) else []

    def named_in(self, nodes: list[ast.AST]) -> Results:
        """The same with the names that lines give to results, and to parts of them."""
        found = replace(self, names=dict(self.names))
        for n in sorted((n for n in nodes if isinstance(n, (ast.Assign, ast.For))), key=lambda n: n.lineno):
            for target in n.targets if isinstance(n, ast.Assign) else [n.target]:
                value = found.of(n.value) if isinstance(n, ast.Assign) else found._each_of(n.iter)
                found._name(target, value)
        return found

    def _name(self, target: ast.expr, value: Any) -> None:
        if value is NOTHING:
            return
        if isinstance(target, ast.Name):
            if self.holds(value):
                self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)) and is_a(value, (tuple, list)):
            pairs = zip(target.elts, value, strict=True) if len(value) == len(target.elts) else ()
            for each, part in pairs:
                self._name(each, part)

    def _each_of(self, node: ast.expr) -> Any:
        """What a loop over a result gives: of a dictionary's items the last of each pair."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GIVE:
            whole = self.of(node.func.value)
            if not is_a(whole, dict):
                return NOTHING
            first = next((v for v in whole.values() if self.holds(v)), NOTHING)
            return first if node.func.attr == "values" or first is NOTHING else ("", first)
        whole = self.of(node)
        return next((v for v in whole if self.holds(v)), NOTHING) if is_a(whole, (tuple, list)) else NOTHING

    def is_given_anew(self, node: ast.expr, nodes: list[ast.AST], at: ast.AST) -> bool:
        """Whether the name is something else by a line: ``loss = loss.item()``."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        ahead = [n for n in nodes if isinstance(n, ast.Assign) and n.lineno < at.lineno]  # type: ignore[attr-defined]
        named = [
            n for n in ahead for t in n.targets for e in elements_of(t) if isinstance(e, ast.Name) and e.id == node.id
        ]
        return any(self.of(n.value) is NOTHING for n in named)


def part_of(whole: Any, node: ast.Attribute | ast.Subscript) -> Any:
    """The part of a result that a path names; the whole where its key is not written there."""
    if is_a(whole, torch.Tensor):
        looks = node.attr in _SAME_MEMORY if isinstance(node, ast.Attribute) else _is_view(node.slice)
        return whole if looks else NOTHING
    with suppress(Exception):  # of a class of the user's
        if isinstance(node, ast.Attribute):
            fields = getattr(whole, "_fields", ()) if is_a(whole, tuple) else ()
            return whole[fields.index(node.attr)] if fields else attributes_of(whole).get(node.attr, NOTHING)
        if isinstance(whole, (dict, list, tuple)):
            key: Any = node.slice.value if isinstance(node.slice, ast.Constant) else NOTHING
            return whole if key is NOTHING else whole[key]
    return NOTHING


def _is_view(key: ast.expr) -> bool:
    """Whether a key of a tensor's gives another look at it: a tensor, or a list, picks copies."""
    return all(isinstance(n, (ast.Constant, ast.Slice)) for n in (key.elts if isinstance(key, ast.Tuple) else [key]))


def kept_from_round_to_round(loop: ast.stmt, around: list[ast.AST], results: Results) -> Iterator[int]:
    """Lines of a loop that give a name a result in some of its rounds, and that is read in, or behind, later ones."""
    inside = [n for statement in loop.body for n in here(statement)]  # type: ignore[attr-defined]
    parents = {child: parent for parent in around for child in ast.iter_child_nodes(parent)}
    for node in (n for n in inside if isinstance(n, ast.Assign) and len(n.targets) == 1):
        target = node.targets[0]
        if not isinstance(target, (ast.Name, ast.Attribute)) or not any(map(results.has, may_be(node.value))):
            continue
        above = _condition(node, parents, loop)
        others = [each for each in may_be(node.value) if not results.has(each)]
        if above is None and not any(_names(each, target) for each in others):
            if _is_read_behind(inside, target, node, results):
                yield node.lineno
            continue  # else each round has its own
        block = (above.body if _stands(node, above.body) else above.orelse) if above is not None else []
        if block and isinstance(block[-1], (ast.Break, ast.Return, ast.Raise)):
            continue
        if above is not None and _is_given_else(above, block, target):
            continue
        reads = (n for n in around if isinstance(n, type(target)) and isinstance(n.ctx, ast.Load))
        named = [n for n in reads if ast.unparse(n) == ast.unparse(target) and not is_about(n, parents)]
        apart = [n for n in named if not _stands(n, block) or n.lineno <= node.lineno]
        anew = any(results.is_given_anew(each, inside, node) for each in may_be(node.value))
        if not anew and any(n.lineno > loop.lineno for n in apart):
            yield node.lineno


def _is_read_behind(
    inside: list[ast.AST], target: ast.Name | ast.Attribute, node: ast.Assign, results: Results
) -> bool:
    """Whether what a round leaves is read in the next one behind its call, as ``y - last`` ahead of ``last = y``."""
    called = [n.lineno for n in inside if isinstance(n, ast.Call) and results.calls(n)]
    parents = {child: parent for parent in inside for child in ast.iter_child_nodes(parent)}
    named = [n for n in inside if isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) == ast.unparse(target)]
    stores = [n for n in named if isinstance(n.ctx, ast.Store)]
    reads = [n for n in named if isinstance(n.ctx, ast.Load) and not is_about(n, parents)]
    return len(stores) == 1 and any(min(called, default=node.lineno) < n.lineno < node.lineno for n in reads)


def _condition(node: ast.AST, parents: dict[ast.AST, ast.AST], loop: ast.stmt) -> ast.If | None:
    """The innermost condition in a loop that a line stands under."""
    above = parents.get(node)
    while above is not None and above is not loop:
        if isinstance(above, ast.If):
            return above
        above = parents.get(above)
    return None


def _stands(node: ast.AST, block: list[ast.stmt]) -> bool:
    return any(spans(each, node.lineno) for each in block)  # type: ignore[attr-defined]


def _is_given_else(above: ast.If, block: list[ast.stmt], target: ast.expr) -> bool:
    """Whether the other way through a condition gives the same name something, too."""
    other = above.orelse if block is above.body else above.body
    stored = [n for s in other for n in here(s) if isinstance(n, ast.Assign)]
    given = [n for n in stored if any(ast.unparse(each) == ast.unparse(target) for each in n.targets)]
    return any(not _names(n.value, target) for n in given)  # and does not go on from what it had


def _names(node: ast.expr, target: ast.expr) -> bool:
    return any(isinstance(n, type(target)) and ast.unparse(n) == ast.unparse(target) for n in ast.walk(node))
