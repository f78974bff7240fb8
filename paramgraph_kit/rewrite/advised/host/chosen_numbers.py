"""What stands for ``a if flag else b`` where the flag is in a tensor: not where a call takes a number alone."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import heads
from paramgraph_kit.rewrite.source.place import Place, called

_FULL = ("full", "full_like", "new_full")  # a value that is a tensor would be read on the host there


def chosen_here(place: Place, node: ast.IfExp, flag: str) -> str:
    """What to write for a choice by a flag on the device: of ``torch.full(n, a if flag else b)`` one of two calls."""
    ways = [place.text(node.body), place.text(node.orelse)]
    for call in heads(place.statement):
        if isinstance(call, ast.Call) and called(call) in _FULL and any(n is node for n in _of_value(call)):
            whole, part = place.text(call), place.text(node)
            filled = [whole.replace(part, f"({way})" if " " in way else way, 1) for way in ways]
            return f"here `torch.where({flag}, {filled[0]}, {filled[1]})` for `{whole}`"
    return f"here `torch.where({flag}, {ways[0]}, {ways[1]})`"


def _of_value(call: ast.Call) -> list[ast.AST]:
    """All of the value that a call fills a tensor with."""
    values = [*call.args[1:2], *(option.value for option in call.keywords if option.arg == "fill_value")]
    return [n for value in values for n in ast.walk(value)]
