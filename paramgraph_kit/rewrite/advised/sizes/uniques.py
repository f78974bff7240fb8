"""Advice for unique values, rows and columns, of which the device alone knows how many there are."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place, called


def _unique_columns(place: Place, call: ast.Call, x: str) -> str:
    """``torch.unique(edges, dim=1)``: a number for each pair, sorted."""
    node = place.statement
    if told := _unique_rows(place, call, x):
        return told
    name = place.text(node.targets[0]) if isinstance(node, ast.Assign) else "it"
    dim = next(place.text(option.value) for option in call.keywords if option.arg == "dim")
    by = f"{x}[0] * n + {x}[1]" if dim in ("1", "-1") else f"{x}[:, 0] * n + {x}[:, 1]"
    pairs = f"torch.stack([code // n, code % n], {0 if dim in ('1', '-1') else 1})"
    return (
        "how many there are is known on the device alone. Of pairs of numbers below an `n` keep all: "
        f"`code = ({by}).sort().values`, `{name} = {pairs}`, and `first = torch.cat([code.new_ones(1, "
        "dtype=torch.bool), code[1:] != code[:-1]])` marks each of them once; multiply by `first` what is summed over "
        "them, and pick `[first]` of results behind the launch"
    )


def _unique_rows(place: Place, call: ast.Call, x: str) -> str:
    """``rows, at = torch.unique(x, dim=0, return_inverse=True)`` of several numbers each."""
    options = {str(o.arg): place.text(o.value) for o in call.keywords}
    target = place.statement.targets[0] if isinstance(place.statement, ast.Assign) else None
    names = [path_of(each) for each in target.elts] if isinstance(target, ast.Tuple) else []
    if len(names) != 2 or options != {"dim": "0", "return_inverse": "True"}:
        return ""
    rows, at = names
    code = f"({x} * n ** torch.arange({x}.shape[1] - 1, -1, -1, device={place.device})).sum(1)"
    return (
        f"how many there are is known on the device alone, and they are at most `len({x})`, which is written for the "
        f"length of `{rows}`: with an `n` of which all of `{x}` are less, and none of which is below 0, `code = {code}`"
        ", `order = code.argsort(stable=True)`, `first = torch.cat([code.new_ones(1, dtype=torch.bool), code[order][1:]"
        f" != code[order][:-1]])`, `{at} = torch.empty_like(order).scatter_(0, order, first.cumsum(0) - 1)`; return "
        f"`order` and `first` too: behind the launch `{rows} = {x}[order][first]`, and of what has a row for each of "
        "them `[: first.sum()]`"
    )


def unique(place: Place) -> str:
    """``torch.unique_consecutive(x)`` and ``for i in x.unique()``."""
    if place.failure.code not in ("dynamic-shape", "sync-item"):
        return ""
    for call in place.calls("unique_consecutive", "unique"):
        own = isinstance(call.func, ast.Attribute) and path_of(call.func.value) != "torch"
        given = call.func.value if own and isinstance(call.func, ast.Attribute) else call.args[0] if call.args else None
        if given is None:
            continue
        x = place.source.bracketed(given)
        if called(call) == "unique_consecutive":
            return (
                f"`keep = torch.cat([{x}.new_ones(1, dtype=torch.bool), {x}[1:] != {x}[:-1]])` marks what it keeps, in "
                f"a fixed size: return `{x}` with `keep`, and pick `[keep]` behind the launch"
            )
        if any(option.arg == "dim" for option in call.keywords):
            return _unique_columns(place, call, x)
        marked = f"torch.zeros(n, dtype=torch.bool, device={place.device}).index_fill_(0, {x}.flatten(), True)"
        if isinstance(place.statement, ast.For):
            return (
                f"how many there are is known on the device alone: `there = {marked}` marks them, with an `n` of which "
                f"all of `{x}` are less; do what the loop does for all `n` at once, and take it with "
                "`torch.where(there, ..., ...)`"
            )
        return (
            f"how many there are is known on the device alone: with an `n` of which all of `{x}` are less, `{marked}` "
            "marks them, which has a fixed size; list them behind the launch"
        )
    return ""
