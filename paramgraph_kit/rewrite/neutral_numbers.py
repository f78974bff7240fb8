"""Numbers that change nothing as they are: a weight of 1.0 until a schedule sets another one, an offset of 0.0.

Lines that leave such a one out, or put it where another product is, look right in all steps. So both, the function as
it is and the rewritten one, are run with others in their places. Only numbers that nothing is decided by are given
other values: the same lines run then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paramgraph_kit.doctor.restore.classes import of_library
from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.around.later import ran_in
from paramgraph_kit.rewrite.conditions import Lent
from paramgraph_kit.rewrite.counting.counted import last_of
from paramgraph_kit.rewrite.lending import Lending
from paramgraph_kit.rewrite.proving.numbers import is_looked_at
from paramgraph_kit.rewrite.proving.proof import Truth
from paramgraph_kit.rewrite.starts import RAISES_THERE, differ

_NEUTRAL = (0.0, 1.0)
_DECIDING = (ast.If, ast.While, ast.IfExp, ast.Assert)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def wrong_beside(attempt: Lending, truth: Truth, lines: Lent) -> str:
    """How rewritten lines differ where such numbers are others; "" where they do not, or where there are none."""
    if attempt.prover.is_part or not (names := _names_in_products(attempt)):
        return ""
    found = list(_neutral(attempt, names))
    if not found:
        return ""
    with _others(found):
        why = differ(attempt, truth, lines, lambda: attempt.prover.from_now().captured(lines.around))
    told = ", ".join(dict.fromkeys(f"`{name}`" for _, name, _ in found))
    return f"where {told} has another value, replays of one graph would differ ({why})" if why not in _UNCLEAR else ""


_UNCLEAR = ("", RAISES_THERE)


def _names_in_products(attempt: Lending) -> set[str]:
    """Names that a step only computes with: operands that stand in no test, no call and no place of a table."""
    computed, others = set[str](), set[str]()
    for source in attempt.sources.values():
        for node in (part for top in ran_in(source, attempt.ran) for part in ast.walk(top)):
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            above = source.parents.get(node)
            if isinstance(above, ast.Attribute):
                continue  # ``self`` of ``self.weight``
            plain = isinstance(above, (ast.BinOp, ast.AugAssign)) and isinstance(above.op, _ARITHMETIC)
            (computed if plain and not _decides(source.parents, node) else others).add(last_of(node))
    return computed - others - {""}


def _decides(parents: dict[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether a number stands in what is tested, compared, or looked up."""
    while (above := parents.get(node)) is not None and not isinstance(node, ast.stmt):
        if isinstance(above, (ast.Compare, ast.BoolOp)) or (isinstance(above, _DECIDING) and above.test is node):
            return True
        if isinstance(above, ast.Subscript) and above.slice is node:
            return True
        if isinstance(above, (ast.For, ast.comprehension)) and above.iter is node:
            return True
        node = above
    return False


def _neutral(attempt: Lending, names: set[str]) -> Iterator[tuple[Holder, str, float]]:
    """What of the user's holds a neutral number by one of these names, and keeps it in all steps."""
    moved = {(id(each.holder.target), each.key or each.holder.name) for each in attempt.prover.numbers().moved}
    for holder in attempt.prover.state.holders:
        if not is_looked_at(holder) or (holder.of is not None and of_library(holder.of)):
            continue
        value = holder.read()
        parts = {holder.name: value} if holder.kind in ("global", "cell") else value
        for name, each in parts.items() if isinstance(parts, dict) else ():
            if type(each) is float and each in _NEUTRAL and name in names and (id(holder.target), name) not in moved:
                yield holder, name, each


@contextmanager
def _others(found: Sequence[tuple[Holder, str, float]]) -> Iterator[None]:
    """While this lasts each of these numbers is another one."""
    try:
        for number, (holder, name, value) in enumerate(found):
            _put(holder, name, value + 0.375 + 0.0625 * number)
        yield
    finally:
        for holder, name, value in found:
            _put(holder, name, value)


def _put(holder: Holder, name: str, value: Any) -> None:
    if holder.kind in ("global", "cell"):
        holder.write(value)
    else:
        holder.target[name] = value
