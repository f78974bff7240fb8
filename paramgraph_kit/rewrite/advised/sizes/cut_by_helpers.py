"""Advice for what grows by a piece in each step, and is cut to a window by another function of the user's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import Function, assigned, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called

FULL = "call the step without a graph until it is full, and capture it then"
_OF_TORCH = {"self", "torch"}


def is_last(node: ast.AST) -> bool:
    """``-n:`` and ``-n * width:``."""
    low = node.lower if isinstance(node, ast.Slice) and node.upper is None else None
    while isinstance(low, ast.BinOp) and isinstance(low.op, (ast.Mult, ast.FloorDiv)):
        low = low.left
    return isinstance(low, ast.UnaryOp) and isinstance(low.op, ast.USub)


def written_if_full(held: str, value: str) -> str:
    """The window written in place once it has its last size, and put in place before."""
    return (
        f"here `new = {value}` and `{held} = {held}.copy_(new) if {held} is not None and {held}.shape == new.shape "
        "else new`"
    )


def cut_by_a_method(place: Place, function: Function, held: str) -> str:
    """``self.k = torch.cat([self.k, k], 1)`` with ``self.trim()`` behind it, which keeps ``self.k[:, -n:]``."""
    stores = [n for n in _assigned(function) if place.text(n.targets[0]) == held]
    if len(stores) != 1:
        return ""
    for helper in _called_by(place, function):
        for node in (n for n in _assigned(helper) if place.text(n.targets[0]) == held):
            part = node.value if isinstance(node.value, ast.Subscript) else None
            if part is None or place.text(part.value) != held or not any(map(is_last, ast.walk(part.slice))):
                continue
            if names_in(part.slice) - _OF_TORCH - place.space.keys():
                continue  # the helper's own, which are not there
            value = f"{place.source.bracketed(stores[0].value)}{place.text(part)[len(held) :]}"
            return (
                f"`{held}` is a window, which has its last size after a few steps, as line {node.lineno} cuts it: "
                f"{written_if_full(held, value)}, without line {node.lineno}; {FULL}"
            )
    return ""


def cut_on_its_way(place: Place, function: Function, held: str, to: str) -> str:
    """``k = torch.cat([self.past[0], k], 1)``, ``k, v = self.evict(k, v)`` and ``self.past = (k, v)``."""
    helpers = {each.name: each for each in _called_by(place, function)}
    root = held.partition("[")[0]
    later = [n for n in _assigned(function) if n.lineno > place.statement.lineno]
    cuts = [n for n in later if _gives(n, to) and isinstance(n.value, ast.Call) and called(n.value) in helpers]
    cuts = [n for n in cuts if any(map(is_last, ast.walk(helpers[called(n.value)])))]  # type: ignore[arg-type]
    stores = [n for n in later if cuts and n.lineno > cuts[0].lineno and place.text(n.targets[0]) == root]
    if not cuts or len(stores) != 1:
        return ""
    new, line = place.text(stores[0].value), stores[0].lineno
    if root == held:
        written = f"`{root} = {root}.copy_({to}) if {root} is not None and {root}.shape == {to}.shape else {new}`"
        return _on_its_way(root, place.text(cuts[0].value), line, written) if new == to else ""
    if not isinstance(stores[0].value, (ast.Tuple, ast.List)) or to not in map(path_of, stores[0].value.elts):
        return ""
    at = held[len(root) :]
    written = (
        f"`new = {new}` and `{root} = new if {root} is None or {root}{at}.shape != new{at}.shape else "
        f"{'tuple' if isinstance(stores[0].value, ast.Tuple) else 'list'}(old.copy_(each) for old, each in "
        f"zip({root}, new))`"
    )
    return _on_its_way(root, place.text(cuts[0].value), line, written)


def cut_back(place: Place, number: str) -> str:
    """``self.k, self.v = self.k[:, :n], self.v[:, :n]``, of what another line joins to: ``number`` says how many."""
    pairs = list(assigned(place.statement))
    cuts = [value for target, value in pairs if _first_of(place, value) == place.text(target) != ""]
    if not cuts or len(cuts) != len(pairs):
        return ""
    names = {path_of(target).rpartition(".")[2] for target, _ in pairs}
    joins = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Assign) and _joins(n, names)]
    ends = {place.text(each.upper) for n in cuts for each in ast.walk(n) if isinstance(each, ast.Slice) and each.upper}
    if not joins or len(ends) != 1:
        return ""
    return (
        f"what line {joins[0].lineno} joins to is cut back here: with room for the longest, and a number beside it, as "
        f"is said there, this line becomes `{number} = {ends.pop()}`, and what lies behind it is written again"
    )


def _first_of(place: Place, value: ast.expr) -> str:
    """``self.k`` of ``self.k[:, :n]``, or ""."""
    if not isinstance(value, ast.Subscript):
        return ""
    slices = [n for n in ast.walk(value.slice) if isinstance(n, ast.Slice)]
    ended = [n for n in slices if n.upper is not None and n.lower is n.step is None]
    whole = all(n in ended or n.lower is n.upper is n.step is None for n in slices)
    return place.text(value.value) if len(ended) == 1 and whole and "." in path_of(value.value) else ""


def _joins(node: ast.Assign, names: set[str]) -> bool:
    given = any(isinstance(n, ast.Call) and called(n) in ("cat", "concat") for n in ast.walk(node.value))
    return given and any(
        isinstance(n, ast.Attribute) and n.attr in names for each in node.targets for n in ast.walk(each)
    )


def _on_its_way(root: str, cut: str, line: int, written: str) -> str:
    return (
        f"stays as it is: `{root}` has its last size after a few steps, as `{cut}` cuts it; line {line} becomes "
        f"{written}, into the tensors that a graph reads; {FULL}"
    )


def _gives(node: ast.Assign, name: str) -> bool:
    """Whether an assignment gives a name what a call makes of it."""
    given = node.value.args if isinstance(node.value, ast.Call) else []
    target = node.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    return name in map(path_of, targets) and name in map(path_of, given)


def _assigned(function: Function) -> list[ast.Assign]:
    every = (n for part in function.body for n in within(part))
    return [n for n in every if isinstance(n, ast.Assign) and len(n.targets) == 1]


def _called_by(place: Place, function: Function) -> Iterator[Function]:
    """Functions of the file that a function calls, where one alone has that name."""
    names = {called(n) for part in function.body for n in within(part) if isinstance(n, ast.Call)}
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, Function)]
    for name in sorted(names - {function.name}):
        found = [n for n in every if n.name == name]
        if len(found) == 1:
            yield found[0]
