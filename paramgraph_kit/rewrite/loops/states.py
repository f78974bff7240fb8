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
    source: Source, function: Function, part: Sequence[ast.stmt], value: Callable[[str], Any]
) -> tuple[list[Edit], list[str], list[str]]:
    """Edits by which a part reads names of its own, with the lines for before and behind it.

    Args:
        value: what has a path, as ``self.state``, or None where nobody knows.
    """
    taken = names_in(source.tree)
    every = [n for n in within(function) if isinstance(n, Held) and _is_held(n)]
    bound = {source.text(n) for n in every if isinstance(n.ctx, ast.Store)}
    names: dict[str, str] = {}
    stored = dict[str, None]()
    edits = []
    inside = {id(n) for each in part for n in within(each)}
    for node in (n for n in every if id(n) in inside and _is_tensor(n, value)):
        if (text := source.text(node)) not in bound:
            continue
        if text not in names:
            names[text] = fresh(f"{_hint(node)}_in", {*taken, *names.values()})
        stored |= {text: None} if isinstance(node.ctx, ast.Store) else {}
        edits.append(source.replace(node, names[text]))
    ahead = [f"{name} = {text}" for text, name in names.items()]
    return edits, ahead, [f"{text} = {names[text]}" for text in stored]


def _is_held(node: Held) -> bool:
    """``state["h"]`` or ``self.h``, of which the place never changes."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) and bool(path_of(node.value))
    return bool(path_of(node))


def _is_tensor(node: Held, value: Callable[[str], Any]) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        held = value(path_of(node.value))
        return isinstance(held, dict) and isinstance(held.get(node.slice.value), torch.Tensor)
    return isinstance(node, ast.Attribute) and isinstance(value(path_of(node)), torch.Tensor)


def _hint(node: Held) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value)
        return name if name.isidentifier() else "held"
    return node.attr if isinstance(node, ast.Attribute) else "held"
