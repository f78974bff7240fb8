"""Advice for edges that a mask leaves out before layers get them: they stay, between nothing and nothing.

``edge_index = edge_index[:, keep]`` with ``h = conv(x, edge_index)``: one node more, which no other one hears of, has
the edges that are left out.
"""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.source.edits import Function, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.widths import columns_of

_GIVEN = "give the edges that are left out to a node of their own, whose row is cut off at the end:"
_ROW = "`{n} = {x}.shape[0]`; `{x} = torch.cat([{x}, {x}.new_zeros(1, *{x}.shape[1:])])`"
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
    found = _between(place, function, target, node.lineno)
    if found is None:
        return ""
    (x, n, cut), kept = found, place.text(mask)
    names = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
    keep = kept if isinstance(mask, ast.Name) else fresh("keep", names)
    made = f"`{keep} = {kept}`; " if keep != kept else ""
    return (
        f"{_GIVEN} in place of line {node.lineno} write {made}{_ROW.format(x=x, n=n)}; `{target.id} = "
        f"torch.where({keep}, {place.text(node.value.value)}, {n})`; and {cut}"
    )


def spare_node_of_a_helper(place: Place) -> str:
    """``return edge_index[:, mask]`` in what a step calls once, ``ei = drop_edges(edge_index, 0.3)``."""
    node, helper = place.statement, place.source.function_of(place.statement)
    value = node.value if isinstance(node, ast.Return) and isinstance(node.value, ast.Subscript) else None
    mask = columns_of(value) if value is not None else None
    if value is None or helper is None or not isinstance(mask, (ast.Name, ast.Compare)):
        return ""
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == helper.name]
    made = place.source.statement_of(calls[0]) if len(calls) == 1 else None
    target, function = target_of(made), place.source.function_of(made) if made is not None else None
    plain = isinstance(made, ast.Assign) and made.value is calls[0] and not calls[0].keywords and calls[0].args
    takes = helper.args.kwonlyargs or helper.args.vararg or helper.args.kwarg or helper.args.defaults
    returns = [n for part in helper.body for n in within(part) if isinstance(n, ast.Return)]
    if made is None or function is None or not plain or takes or len(returns) > 1 or not isinstance(target, ast.Name):
        return ""
    if place.failure.code != "dynamic-shape" or not _PAIR.search(place.failure.message):
        return ""
    found = _between(place, function, target, made.lineno)
    if found is None:
        return ""
    x, n, cut = found
    call = f"{place.text(calls[0]).removesuffix(')')}, {n})"
    here = f"return torch.where({place.text(mask)}, {place.text(value.value)}, {n})"
    return (
        f"{_GIVEN} in place of line {made.lineno} write {_ROW.format(x=x, n=n)}; `{target.id} = {call}`; "
        f"`{helper.name}` takes `{n}` as its last argument, and here `{here}`; and {cut}"
    )


def _between(place: Place, function: Function, target: ast.Name, line: int) -> tuple[str, str, str] | None:
    """What the layers get that are given the edges, a name for how many nodes there are, and what cuts one off."""
    layers = [call for call in _calls_with(place, function, target.id) if call.lineno > line]
    firsts = [call.args[0] for call in layers if len(call.args) > 1 and isinstance(call.args[0], ast.Name)]
    if not layers or len(firsts) != len(layers) or _is_read_otherwise(function, target, layers):
        return None
    x, last = firsts[0].id if isinstance(firsts[0], ast.Name) else "", layers[-1]
    order = [part for top in function.body for part in within(top) if isinstance(part, ast.Assign)]
    early = x in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} or any(
        x in stored([part]) and part.lineno < line for part in order
    )
    if not early:
        return None
    n = fresh("n_nodes", {each.id for each in ast.walk(function) if isinstance(each, ast.Name)})
    end = place.source.statement_of(last)
    result = target_of(end)
    whole = isinstance(end, ast.Assign) and end.value is last
    cut = (
        f"behind line {end.lineno} `{result.id} = {result.id}[:{n}]`"
        if isinstance(result, ast.Name) and whole
        else f"in line {end.lineno} `{place.text(last)}[:{n}]` for `{place.text(last)}`"
    )
    return x, n, f"{cut} (where a layer is told how many nodes there are, one more)"


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
