"""Advice for unique values, rows and columns, of which the device alone knows how many there are."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh


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
            there = fresh("there", place.taken)
            loop = f"for {place.text(place.statement.target)} in range(n):"
            kept = _kept_rows(place, place.statement, there)
            return _for_all(x, [f"{there} = {marked}", loop], there) + kept
        if told := _all_numbers(place, call, x, marked):
            return told
        return (
            f"how many there are is known on the device alone: with an `n` of which all of `{x}` are less, `{marked}` "
            "marks them, which has a fixed size; list them behind the launch"
        )
    return ""


def _all_numbers(place: Place, call: ast.Call, x: str, marked: str) -> str:
    """``classes = torch.unique(y)``, which the function goes over or compares with: all numbers below an ``n`` do."""
    node, function = place.statement, place.source.function_of(place.statement)
    names = _given(node, call)
    if function is None or "unique" not in names:
        return ""
    classes = names["unique"]
    later = [n for part in function.body for n in within(part) if getattr(n, "lineno", 0) > node.lineno]
    read = [n for n in later if isinstance(n, ast.Name) and n.id == classes]
    if all(isinstance(place.source.parents.get(n), (ast.Return, ast.Tuple, ast.Attribute)) for n in read):
        return ""  # who only lists them, or asks how many there are, has no use for the others
    there = fresh(f"{classes}_there", place.taken)
    lines = [f"{classes} = torch.arange(n, device={place.device})", f"{there} = {marked}"]
    counts = f"torch.zeros(n, dtype=torch.long, device={place.device})"
    of_each = {
        "return_inverse": x,
        "return_counts": f"{counts}.scatter_add_(0, {x}.flatten(), torch.ones_like({x}.flatten()))",
    }
    lines += [f"{names[option]} = {made}" for option, made in of_each.items() if option in names]
    return _for_all(x, lines, there)


def _kept_rows(place: Place, loop: ast.For, there: str) -> str:
    """``proto[c] = new`` of a round: where there is none, the row stays as it was."""
    at = place.text(loop.target)
    every = [n for part in loop.body for n in within(part) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    rows = [(n, n.targets[0]) for n in every if isinstance(n.targets[0], ast.Subscript)]
    own = [(n, place.text(row)) for n, row in rows if isinstance(row, ast.Subscript) and at in names_in(row.slice)]
    texts = [f"line {n.lineno} `{row} = torch.where({there}[{at}], {place.text(n.value)}, {row})`" for n, row in own]
    return f"; a row of which none is there stays as it was, {' and '.join(texts)}" if texts else ""


def _for_all(x: str, lines: Sequence[str], there: str) -> str:
    return (
        "how many there are is known on the device alone: do for all numbers below an `n` of the host's, of which all "
        f"of `{x}` are less, what is done for these: here `{'`, `'.join(lines)}`. What comes of a number that is not "
        f"there is left out: `torch.where({there}, ..., 0)` of what has one for each (`{there}[i]` in round i of a "
        "loop) before it is added up, -torch.inf for 0 where the largest or a softmax is taken, torch.inf where the "
        f"least is; `{there}.sum()` says how many there are, by which a mean over them divides; where rows of one are "
        "averaged, divide by their number with `.clamp(min=1)`, as it may have none; what is returned with a row for "
        f"each is picked by `[{there}]` behind the launch"
    )


def picked_of_unique(place: Place) -> str:
    """``classes = classes[classes != 0]`` of unique values: the mask beside them has fewer."""
    node, function = place.statement, place.source.function_of(place.statement)
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if place.failure.code != "dynamic-shape" or function is None or not isinstance(value, ast.Subscript):
        return ""
    name = path_of(value.value)
    made = [n for n in function.body if isinstance(n, ast.Assign) and n.lineno < node.lineno]
    calls = [(n, n.value) for n in made if isinstance(n.value, ast.Call) and called(n.value) == "unique"]
    own = [n for n, call in calls if _given(n, call) == {"unique": name}]
    if not own or place.text(node.targets[0] if isinstance(node, ast.Assign) else node) != name:
        return ""
    there = fresh(f"{name}_there", place.taken)
    mask = place.source.bracketed(value.slice)
    return f"`{there} = {there} & {mask}` in place of it, with what is told of line {own[-1].lineno}"


def _given(node: ast.stmt, call: ast.Call) -> dict[str, str]:
    """Names that a statement gives to what it returns: ``values, at = torch.unique(x, return_inverse=True)``."""
    if not isinstance(node, ast.Assign) or node.value is not call or len(node.targets) != 1:
        return {}
    options = {str(o.arg): o.value.value for o in call.keywords if isinstance(o.value, ast.Constant)}
    if len(options) != len(call.keywords):
        return {}
    wanted = [option for option in ("return_inverse", "return_counts") if options.get(option)]
    target = node.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    kinds = ["unique", *wanted]
    names = [each.id if isinstance(each, ast.Name) else "" for each in targets]
    return dict(zip(kinds, names, strict=True)) if len(names) == len(kinds) and all(names) else {}
