"""Results that a rewritten step returns where it holds them: a caller that keeps them would see them change.

``self.t = self.t + d; return self.t`` returns another tensor each time, and ``self.t.copy_(self.t + d)`` the same one.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.proving.proof import Truth
from paramgraph_kit.rewrite.rounds import Rounds, again_on, overwritten, tried
from paramgraph_kit.rewrite.source.edits import Source, assigned, functions_of, path_of, within

KEPT = (
    "what it returns is memory that each call writes now, where it was a tensor of its own: keep `.clone()` of {} "
    "wherever it is kept from one call to the next"
)
_SAME = ("detach", "view", "view_as", "squeeze", "unsqueeze", "flatten", "reshape", "t", "transpose", "permute")


def copy_what_is_kept(rounds: Rounds, truth: Truth) -> list[str]:
    """Return copies of what the rewritten lines write in place; where none is sure, what to know of it."""
    first = rounds.all[0][0]
    if first.prover.is_part or not (written := written_by(rounds)):
        return []
    if not (found := overwritten(rounds, truth)):
        return []
    with rounds.applied():
        attempt = again_on(rounds, truth)
        names = {code.co_qualname for code in first.ran}
        edits: dict[str, tuple[Source, list[ast.expr]]] = {}
        for source in attempt.sources.values():
            if nodes := [node for node, roots in _returned(source, names) if roots & written]:
                edits[source.file] = source, nodes
        plans = [
            Plan(source, [source.replace(node, f"{source.text(node)}.clone()") for node in nodes], [])
            for source, nodes in edits.values()
        ]
        is_right = bool(plans) and not tried(attempt, rounds.around, plans, truth)
    if is_right:
        rounds.add(attempt, plans)
        found = overwritten(rounds, truth)
    return [KEPT.format("it")] if any(found.values()) else []


def written_by(rounds: Rounds) -> set[str]:
    """What new lines write in place: ``self.t`` of ``self.t.copy_(...)``."""
    first, found = rounds.all[0][0], set[str]()
    for file, lines in rounds.texts.items():
        found |= set(Counter(_writes(ast.parse("".join(lines)))) - Counter(_writes(first.sources[file].tree)))
    return found


def _writes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.endswith("__"):
                yield from _roots(node.func.value)


def _roots(node: ast.expr) -> Iterator[str]:
    """``self.t.detach()[:2]``, and ``self.t``, of which it is a view."""
    yield ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
        yield from _roots(node.func.value)
    elif isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data")):
        yield from _roots(node.value)


def _returned(source: Source, names: set[str]) -> Iterator[tuple[ast.expr, set[str]]]:
    """The parts of what functions return, and of what each is a view, also by a name that it is given once."""
    for function in functions_of(source.tree, names):
        every = [n for part in function.body for n in within(part)]
        given = [(path_of(to), value) for n in every for to, value in assigned(n)]
        bound = Counter(n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        once = {name: value for name, value in given if bound[name] == 1}
        for node in every:
            if isinstance(node, ast.Return) and node.value is not None:
                for part in _parts(node.value):
                    roots = set(_roots(part))
                    yield part, roots.union(*(_roots(once[name]) for name in roots & once.keys()))


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """``a``, ``b`` and ``c`` of ``a, {"b": b}``, or ``Out(a, b=b)``."""
    inside: list[ast.expr] = []
    if isinstance(node, (ast.Tuple, ast.List)):
        inside = node.elts
    elif isinstance(node, ast.Dict):
        inside = node.values
    elif isinstance(node, ast.IfExp):
        inside = [node.body, node.orelse]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[:1].isupper():
        inside = [*node.args, *(each.value for each in node.keywords)]
    for each in inside:
        yield from _parts(each)
    if not inside:
        yield node
