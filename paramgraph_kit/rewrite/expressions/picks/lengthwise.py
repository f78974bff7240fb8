"""Parts of tensors up to a length that the device has found become masks: ``x[b, :n]`` and ``x[b, n:] = 0``.

``n = int(mask[b].sum())`` stays a tensor, ``h = x[b, :n]`` picks by ``torch.arange(x.shape[1]) < n``, which is then
rewritten as any other mask: what is summed up of it is a sum with zeros.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import Edit, combined, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, integer, is_number, target_of
from paramgraph_kit.rewrite.source.widths import may_be_negative, takes_all

_READS = ("item", "int", "tolist")


def mask_the_part(place: Place) -> list[Edit]:
    """A length that is read, and every part that ends there."""
    node, function, source = place.statement, place.source.function_of(place.statement), place.source
    if function is None:
        return []
    if place.failure.code == "tensor-bound":
        return list(_parts(place, node, names_in(node)) or [])
    target = target_of(node)
    inside = [n for n in heads(node) if isinstance(n, ast.Slice)]
    if any(_reading(n) is not None for part in inside for n in ast.walk(part)):
        return list(_parts(place, node, set()) or [])
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or target.id not in locals_of(function):
        return []
    inner = _reading(node.value)
    if inner is None or any(isinstance(n, (ast.Sub, ast.USub)) for n in ast.walk(inner)):
        return []  # below zero it would count from the end
    edits = [source.replace(node.value, source.bracketed(inner))]
    names = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id == target.id]
    stores = [n.lineno for n in names if isinstance(n.ctx, ast.Store) and n is not target]
    if any(line <= node.lineno for line in stores):
        return []  # what it was before may be read, too
    until = min(stores, default=(function.end_lineno or 0) + 1)
    behind = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt) and n is not node]
    others = [n for n in behind if n.lineno < until]
    others = [n for n in others if target.id in {x.id for x in heads(n) if isinstance(x, ast.Name)}]
    found = False
    for other in others:
        if any(isinstance(n, ast.Call) and called(n) in ("range", "zeros", "ones", "full") for n in heads(other)):
            return []
        sliced = [n for n in heads(other) if isinstance(n, ast.Slice) and target.id in names_in(n)]
        if not sliced:
            continue
        more = _parts(place, other, {target.id})
        if more is None:
            return []
        edits += more
        found = True
    return edits if found else []


def _reading(node: ast.AST) -> ast.expr | None:
    """``x`` of ``x.item()``, ``int(x)`` and ``int(x.item())``."""
    if not isinstance(node, ast.Call) or called(node) not in _READS:
        return None
    if isinstance(node.func, ast.Attribute):
        return None if node.args or called(node) != "item" else node.func.value
    if len(node.args) != 1 or called(node) != "int":
        return None
    return _reading(node.args[0]) or node.args[0]


def _parts(place: Place, node: ast.stmt, names: set[str]) -> list[Edit] | None:
    """Edits of a statement's parts that end where one of these names, or what is read there, says; None for others."""
    edits = list[Edit]()
    for sub in (n for n in heads(node) if isinstance(n, ast.Subscript)):
        pieces = list(sub.slice.elts) if isinstance(sub.slice, ast.Tuple) else [sub.slice]
        ends = [n for n in pieces if isinstance(n, ast.Slice) and _ends(n, names)]
        if not ends:
            continue
        at = pieces.index(ends[0])
        first, rest, part = pieces[:at], pieces[at + 1 :], ends[0]
        plain = all(isinstance(n, (ast.Name, ast.Constant)) and integer(n) != -1 for n in first)
        plain &= not any(isinstance(n, ast.Constant) and n.value is ... for n in first)
        full = all(map(takes_all, rest))
        x = place.source.bracketed(sub.value)
        if may_be_negative(place.source, sub, part):
            return None  # below zero it would count from the end
        if len(ends) > 1 or not full or part.step is not None or not path_of(sub.value):
            return None
        if not plain or (not first and isinstance(node, ast.AugAssign) and sub is node.target):
            text = _written(place, node, sub, first, rest, part)
            if not text:
                return None
            edits.append(place.source.replace(node, text))
            continue
        base = f"{x}[{', '.join(map(place.text, first))}]" if first else x
        places = f"torch.arange({x}.shape[{at}], device={x}.device)"
        tests = [f"{places} {sign} {text}" for sign, text in _tests(place, part)]
        mask = " & ".join(f"({each})" for each in tests) if len(tests) > 1 else "".join(tests)
        if isinstance(sub.ctx, ast.Load):
            edits.append(place.source.replace(sub, f"{base}[{mask}]"))
        elif isinstance(node, ast.Assign) and _is_filler(node.value) and len(node.targets) == 1:
            mask = f"({mask})[:, *[None] * ({x}.dim() - {at + 1})]" if rest else mask
            edits.append(place.source.replace(node, f"{base}.masked_fill_({mask}, {place.text(node.value)})"))
        else:
            return None
    return edits


def _written(
    place: Place, node: ast.stmt, sub: ast.Subscript, first: list[ast.expr], rest: list[ast.expr], part: ast.Slice
) -> str:
    """``x[:, n:] = 0`` and ``x[..., :n] *= 0.5`` with a mask of the places, or ""."""
    from_the_end = bool(first) and isinstance(first[0], ast.Constant) and first[0].value is ...
    whole = all(map(takes_all, first[from_the_end:]))
    if not whole or not isinstance(sub.ctx, ast.Store) or not isinstance(node, (ast.Assign, ast.AugAssign)):
        return ""
    if not (_is_filler(node.value) and (isinstance(node, ast.AugAssign) or len(node.targets) == 1)):
        return ""
    x = place.text(sub.value)
    form = place.tensors.get(x)
    if from_the_end:
        axis, behind = -1 - len(rest), f"[:{', None' * len(rest)}]" * bool(rest)
    elif form is not None:
        axis, left = len(first), len(form.shape) - len(first) - 1
        behind = f"[:{', None' * left}]" * bool(left)
    else:
        axis, behind = len(first), f".view(-1, *[1] * ({x}.dim() - {len(first) + 1}))"
    places = f"torch.arange({x}.shape[{axis}], device={x}.device){behind}"
    tests = [f"{places} {sign} {text}" for sign, text in _tests(place, part)]
    mask = " & ".join(f"({each})" for each in tests) if len(tests) > 1 else "".join(tests)
    value = place.text(node.value)
    if isinstance(node, ast.Assign):
        return f"{x}.masked_fill_({mask}, {value})"
    value = combined(node, x, value)
    return f"{x}.copy_(torch.where({mask}, {value}, {x}))" if value else ""


def _is_filler(node: ast.expr) -> bool:
    minus = isinstance(node, ast.UnaryOp) and _is_filler(node.operand)
    return minus or is_number(node) or path_of(node) in ("math.inf", "torch.inf", "np.inf") or _is_infinite(node)


def _is_infinite(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and called(node) == "float" and isinstance(node.args[0], ast.Constant)


def _ends(part: ast.Slice, names: set[str]) -> bool:
    both = [each for each in (part.lower, part.upper) if each is not None]
    return any(
        (isinstance(n, ast.Name) and n.id in names) or (not names and _reading(n) is not None)
        for each in both
        for n in ast.walk(each)
    )


def _tests(place: Place, part: ast.Slice) -> Iterator[tuple[str, str]]:
    """The comparisons that a part's ends are."""
    for sign, end in ((">=", part.lower), ("<", part.upper)):
        if end is None or integer(end) == 0:
            continue
        inner = _reading(end)
        yield sign, place.source.bracketed(inner if inner is not None else end)
