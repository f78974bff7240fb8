"""A whole prefix computed again at each step, of which the last place is read: ``lm(ids[:, :n])[:, -1]``.

Where no place looks at those behind it, as in a causal model, all of the buffer gives the same at that place:
``lm(ids)[:, n - 1]``. Whether it does is for the trial to show.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.rewrite.caches.growths import Key
from paramgraph_kit.rewrite.caches.places import Text, Texts
from paramgraph_kit.rewrite.caches.tracked import Tracking
from paramgraph_kit.rewrite.source.edits import Edit, Function, assigned, path_of, within
from paramgraph_kit.rewrite.source.place import fresh
from paramgraph_kit.rewrite.source.widths import parts_of


def read_at_the_end(texts: Texts, tracking: Tracking, left: Collection[Key], edits: list[Edit]) -> frozenset[Key]:
    """Those parts, of ``left``, of which what comes is read at its last place, which is rewritten.

    ``edits`` gets lines that are new for that.
    """
    found = set[Key]()
    for key in left:
        part, node = tracking.growths.parts[key], tracking.node(key)
        function = texts.source.function_of(node) if node is not None else None
        end = parts_of(node)[part.number] if isinstance(node, ast.Subscript) else None
        if function is None or node is None or not isinstance(end, ast.Slice) or end.lower is not None:
            continue
        picks = list(_picks(function, node, part.number)) if end.upper is not None else []
        if not picks or end.upper is None:
            continue
        place, statement = f"({texts.text(end.upper)} - 1).reshape(1)", texts.source.statement_of(node)
        if any(texts.source.statement_of(pick) is not statement for pick in picks):  # by then it may have moved on
            name = fresh("last", {n.id for n in ast.walk(function) if isinstance(n, ast.Name)})
            edits.append(texts.source.before(statement, [f"{name} = {place}"]))
            place = name
        for pick in picks:
            texts.new[pick] = _at(texts, pick, place, part.number)
        found.add(key)
    return frozenset(found)


def _picks(function: Function, node: ast.expr, number: int) -> Iterator[ast.Subscript]:
    """Where the last place is read of what comes of a part."""
    every = [n for part in function.body for n in within(part)]
    names, before = set[str](), -1
    while len(names) > before:
        before = len(names)
        pairs = [pair for n in every for pair in assigned(n)]
        names |= {path_of(t) for t, v in pairs if _comes(v, node, names) and isinstance(t, ast.Name)}
    for each in every:
        if not isinstance(each, ast.Subscript) or not isinstance(each.ctx, ast.Load) or each is node:
            continue
        parts = parts_of(each)
        if number < len(parts) and _is_last(parts[number]) and _comes(each.value, node, names):
            yield each


def _comes(value: ast.expr, node: ast.expr, names: Collection[str]) -> bool:
    return any(n is node or (isinstance(n, ast.Name) and n.id in names) for n in ast.walk(value))


def _is_last(part: ast.expr) -> bool:
    part = part.lower if isinstance(part, ast.Slice) and part.upper is None and part.lower is not None else part
    return ast.unparse(part) == "-1"


def _at(texts: Texts, pick: ast.Subscript, place: str, number: int) -> Text:
    parts = parts_of(pick)

    def text() -> str:
        shown = [place if n == number else texts.text(each) for n, each in enumerate(parts)]
        while len(shown) > number + 1 and shown[-1] == ":":
            shown.pop()
        kept = "" if isinstance(parts[number], ast.Slice) else f".squeeze({number})" if number else "[0]"
        return f"{texts.bracketed(pick.value)}[{', '.join(shown)}]{kept}"

    return text
