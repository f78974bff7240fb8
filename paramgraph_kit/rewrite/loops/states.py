"""Tensors that the host holds by a name that gets others, ``state["h"]``: given to a part of a step, and handed back.

``logits, state["h"] = net(x, state["h"])`` in what is a graph would leave the caller's dictionary with the graph's own
memory, and a line around it that begins anew would not reach the graph.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import fresh

Held = ast.Subscript | ast.Attribute


def hand_over(
    source: Source,
    function: Function,
    part: Sequence[ast.stmt],
    value: Callable[[str], Any],
    loop: ast.AST | None = None,
) -> tuple[list[Edit], list[str], list[str]]:
    """Edits by which a part reads names of its own, with the lines for before and behind it.

    Args:
        value: what has a path, as ``self.state``, or None where nobody knows.
        loop: of which it is a round: what that alone gives others stays in its own memory, and is no such name.
    """
    taken = names_in(source.tree)
    every = [n for n in within(function) if isinstance(n, Held) and _is_held(n)]
    names: dict[str, str] = {}
    stored = dict[str, None]()
    edits = []
    inside = {id(n) for each in part for n in within(each)}
    around = {id(n) for n in ast.walk(loop)} - inside if loop is not None else set[int]()
    stores = [n for n in every if isinstance(n.ctx, ast.Store)]
    bound = {source.text(n) for n in stores if loop is None or id(n) in around}
    bound -= {source.text(n) for n in stores if id(n) in around and _is_between(n, part)}
    for node in (n for n in every if id(n) in inside and _is_tensor(n, value)):
        if (text := source.text(node)) not in bound:
            continue
        if text not in names:
            names[text] = fresh(f"{_hint(node)}_in", {*taken, *names.values()})
        stored |= {text: None} if isinstance(node.ctx, ast.Store) else {}
        edits.append(source.replace(node, names[text]))
    ahead = [f"{name} = {text}" for text, name in names.items()]
    return edits, ahead, [f"{text} = {names[text]}" for text in stored]


def numbers_held(
    source: Source, block: ast.AST, part: Sequence[ast.stmt], value: Callable[[str], Any]
) -> dict[str, int | float]:
    """What a part reads of others, as it is written, that is a number which its block sets beside it: ``self.h``."""
    inside = {id(n) for each in part for n in within(each)}
    every = [n for n in ast.walk(block) if isinstance(n, Held) and _is_held(n)]
    read = {source.text(n): n for n in every if id(n) in inside and isinstance(n.ctx, ast.Load)}
    stored = {(source.text(n), id(n) in inside or _is_between(n, part)) for n in every if isinstance(n.ctx, ast.Store)}
    found = {
        text: _held(n, value) for text, n in read.items() if (text, False) in stored and (text, True) not in stored
    }
    return {text: n for text, n in found.items() if isinstance(n, (int, float)) and not isinstance(n, bool)}


def _is_between(node: ast.expr, part: Sequence[ast.stmt]) -> bool:
    """Whether something stands among the statements of a part, which read it before and after that."""
    return bool(part) and part[0].lineno <= node.lineno <= (part[-1].end_lineno or part[-1].lineno)


def _held(node: Held, value: Callable[[str], Any]) -> Any:
    """What it is now, or None."""
    if isinstance(node, ast.Subscript):
        held = value(path_of(node.value))
        return held.get(node.slice.value) if isinstance(held, dict) and isinstance(node.slice, ast.Constant) else None
    return value(path_of(node))


def _is_held(node: Held) -> bool:
    """``state["h"]`` or ``self.h``, of which the place never changes."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) and bool(path_of(node.value))
    return bool(path_of(node))


def _is_tensor(node: Held, value: Callable[[str], Any]) -> bool:
    return isinstance(_held(node, value), torch.Tensor)


def _hint(node: Held) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value)
        return name if name.isidentifier() else "held"
    return node.attr if isinstance(node, ast.Attribute) else "held"
