"""Advice for edges that a mask leaves out before layers get them: they stay, between nothing and nothing.

``edge_index = edge_index[:, keep]`` with ``h = conv(x, edge_index)``: one node more, which no other one hears of, has
the edges that are left out.
"""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.source.edits import within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.widths import columns_of

_PAIR = re.compile(r"int(?:64|32)\[2, \d+\], bool\[\d+\]")


def spare_node(place: Place) -> str:
    """``edge_index = edge_index[:, keep]``, and ``weight = weight[keep]`` beside it."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "dynamic-shape" or function is None or not isinstance(node, ast.Assign):
        return ""
    order = [part for top in function.body for part in within(top) if isinstance(part, ast.Assign)]
    pairs = [part for part in order if _mask_of(part) is not None]
    for pair in pairs if node not in pairs else ():
        mask = _mask_of(pair)
        value = node.value if isinstance(node.value, ast.Subscript) else None
        if mask is not None and value is not None and place.text(value.slice) == place.text(mask):
            return (
                f"keep all of `{place.text(value.value)}`, `{place.text(node.targets[0])} = "
                f"{place.text(value.value)}`: what is told of line {pair.lineno} has those left out add nothing"
            )
    mask, target = _mask_of(node), target_of(node)
    if (
        mask is None
        or not _PAIR.search(place.failure.message)
        or not isinstance(target, ast.Name)
        or not isinstance(node.value, ast.Subscript)
    ):
        return ""
    layers = [call for call in _calls_with(place, function, target.id) if call.lineno > node.lineno]
    firsts = [call.args[0] for call in layers if len(call.args) > 1 and isinstance(call.args[0], ast.Name)]
    if not layers or len(firsts) != len(layers) or _is_read_otherwise(function, target, layers):
        return ""
    x, last = firsts[0].id if isinstance(firsts[0], ast.Name) else "", layers[-1]
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    n, kept = fresh("n_nodes", names), place.text(mask)
    keep = kept if isinstance(mask, ast.Name) else fresh("keep", names)
    made = f"`{keep} = {kept}`; " if keep != kept else ""
    edges = place.text(node.value.value)
    there = f"in place of line {node.lineno} write"
    early = x in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} or any(
        x in stored([part]) and part.lineno < node.lineno for part in order
    )
    if not early:
        return ""
    end = _statement_of(place, last)
    result = target_of(end)
    cut = (
        f"behind line {end.lineno} `{result.id} = {result.id}[:{n}]`"
        if isinstance(result, ast.Name)
        else f"in line {end.lineno} `{place.text(last)}[:{n}]` for `{place.text(last)}`"
    )
    return (
        f"give the edges that are left out to a node of their own, whose row is cut off at the end: {there} {made}"
        f"`{n} = {x}.shape[0]`; `{x} = torch.cat([{x}, {x}.new_zeros(1, *{x}.shape[1:])])`; `{target.id} = "
        f"torch.where({keep}, {edges}, {n})`; and {cut} (where a layer is told how many nodes there are, one more)"
    )


def _mask_of(node: ast.Assign) -> ast.expr | None:
    """``keep`` of ``edge_index = edge_index[:, keep]``."""
    value = node.value if len(node.targets) == 1 else None
    mask = columns_of(value) if isinstance(value, ast.Subscript) else None
    return mask if isinstance(mask, (ast.Name, ast.Compare)) else None


def _calls_with(place: Place, function: ast.AST, name: str) -> list[ast.Call]:
    """Calls of the user's own that are given the edges, beside something else, in order."""
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    found = [n for n in calls if any(isinstance(a, ast.Name) and a.id == name for a in n.args) and _is_own(place, n)]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _is_own(place: Place, call: ast.Call) -> bool:
    root = place.text(call.func).partition(".")[0]
    return root not in ("torch", "F", "nn") and called(call) not in ("len",)


def _is_read_otherwise(function: ast.AST, target: ast.Name, layers: list[ast.Call]) -> bool:
    given = {id(n) for call in layers for n in call.args}
    every = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id)
    later = [n for n in every if isinstance(n.ctx, ast.Load) and n.lineno > target.lineno]
    return any(id(n) not in given for n in later)


def _statement_of(place: Place, node: ast.AST) -> ast.stmt:
    above: ast.AST = node
    while not isinstance(above, ast.stmt):
        above = place.source.parents[above]
    return above
