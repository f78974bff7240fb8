"""Tensors that a number of the host's picks: ``self.masks[self.turn]``; a graph keeps the one of its capture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of

PICKS = "picks a tensor"


def picks_by(name: str, code: CodeType) -> list[ast.Subscript]:
    """What a function reads at places that a number decides, each text once."""
    reads = (n for n in nodes_of(code) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load))
    found = {ast.unparse(n): n for n in reads if name in map(ast.unparse, ast.walk(n.slice))}
    return [*found.values()]


def picks_words(name: str, code: CodeType) -> str:
    """What one writes for each: a tensor that lives on, given the one that is picked; "" where it writes those."""
    return words_of(picks_by(name, code), nodes_of(code))


def words_of(picks: Sequence[ast.Subscript], nodes: Iterable[ast.AST], first: str = "") -> str:
    """The same of picks that are known, with what is done before that."""
    texts = [ast.unparse(each) for each in picks]
    if not texts or any(text in texts for text in written_in(nodes)):
        return ""
    pairs = [*zip(_names(last_name(each.value) for each in picks), texts, strict=True)]
    made = ", ".join(f"`{name} = {text}.clone()`" for name, text in pairs)
    given = ", ".join(f"`{name}.copy_({text})`" for name, text in pairs)
    here = ", ".join(f"`{name}` for `{text}`" for name, text in pairs)
    return f"once {made}, before each launch {given}{first}, and in the step {here}"


def written_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What lines write in place: ``held.add_(x)``, ``held[i] = x``, ``held += x``."""
    for node in nodes:
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and re.search(r"[a-z]_$", function.attr):
            yield ast.unparse(function.value)
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node.value)
            yield ast.unparse(node)


def _names(holders: Iterable[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for each in holders:
        seen[each] = seen.get(each, 0) + 1
        yield f"{each or 'picked'}_in{'' if seen[each] == 1 else f'_{seen[each]}'}"
