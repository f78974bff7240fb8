"""Advice for parts of a buffer that the host bounds beside a mask that is as long: both can have their full length.

``mask = torch.arange(n) <= lengths[:, None]`` with ``attention(q, k[:, :n], v[:, :n], attn_mask=mask)``: what lies
behind the ends is masked at any length.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.widths import parts_of

_SOFTENS = ("softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention")


def left_whole(place: Place) -> str:
    """Complete lines for parts and a mask that end at one number of the host's."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "size-frozen" or function is None:
        return ""
    for end in dict.fromkeys(_ends(place, place.statement)):
        every = [n for part in function.body for n in within(part)]
        cuts = [n for n in every if isinstance(n, ast.Subscript) and _ends_at(place, n, end) is not None]
        ranges = [n for n in every if isinstance(n, ast.Call) and _counts_to(place, n) == end]
        read = [n for n in every if isinstance(n, (ast.Name, ast.Attribute)) and _is_read_as(place, n, end)]
        if not cuts or len(read) != len(cuts) + len(ranges) or not all(_masks(place, function, n) for n in ranges):
            continue
        if not ranges:
            continue
        x, dim = place.text(cuts[0].value), _ends_at(place, cuts[0], end)
        wholes = " and ".join(dict.fromkeys(f"`{place.text(n.value)}{_rest(place, n, end)}`" for n in cuts))
        masks = dict.fromkeys(f"`{place.text(n)}` (line {n.lineno})" for n in ranges)
        longer = f"`torch.arange({x}.shape[{dim}], device={x}.device)`"
        lines = sorted({n.lineno for n in cuts})
        return (
            f"leave the cuts out: {wholes} in line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}, and {longer} "
            f"for {' and '.join(masks)}. All is of one size then, and the mask that is made of it leaves out what lies "
            f"behind `{end}`, as it does between the ends; what it compares with comes in a tensor that stays"
        )
    return ""


def softened(place: Place, x: str, dim: int, end: str) -> str:
    """What a softmax over a part needs that is masked with zeros: they would have a weight, too."""
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    if not any(isinstance(n, ast.Call) and called(n) in _SOFTENS for n in every):
        return ""
    return (
        f"; a softmax would give weight to zeros, too: for attention `attn_mask=(torch.arange({x}.shape[{dim}], "
        f"device={x}.device) < {end})[None]`, elsewhere `scores.masked_fill(..., -torch.inf)` where that is False"
    )


def is_a_size(place: Place, name: str) -> bool:
    """Whether a line gives a name to what makes a tensor of that size, which takes no tensor for it."""
    calls = [n for n in ast.walk(place.statement) if isinstance(n, ast.Call)]
    return place.failure.code == "size-frozen" and any(called(n) == "arange" and name in names_in(n) for n in calls)


def _ends(place: Place, node: ast.stmt) -> list[str]:
    """At what numbers the parts and ranges of a line end."""
    found = list[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.Slice) and each.upper is not None and each.lower is None and each.step is None:
            found.append(place.text(each.upper))
        elif isinstance(each, ast.Call):
            found.append(_counts_to(place, each))
    return [text for text in found if text and not text.lstrip("-").isdigit()]


def _ends_at(place: Place, node: ast.Subscript, end: str) -> int | None:
    """The dimension in which a part that is read ends there; None of one that picks by numbers, too."""
    parts = parts_of(node)
    if not path_of(node.value) or not isinstance(node.ctx, ast.Load):
        return None
    if any(not isinstance(n, ast.Slice) or n.lower is not None or n.step is not None for n in parts):
        return None
    at = [k for k, n in enumerate(parts) if isinstance(n, ast.Slice) and n.upper and place.text(n.upper) == end]
    return at[0] if len(at) == 1 else None


def _counts_to(place: Place, node: ast.Call) -> str:
    """``n`` of ``torch.arange(n)`` and of ``torch.arange(0, n)``, or ""."""
    first = node.args[0] if len(node.args) == 2 else None
    begins = first is None or (isinstance(first, ast.Constant) and first.value == 0)
    return place.text(node.args[-1]) if called(node) == "arange" and 0 < len(node.args) < 3 and begins else ""


def _is_read_as(place: Place, node: ast.Name | ast.Attribute, end: str) -> bool:
    """Whether it is what the ends are named by: the first name in ``n + 1``, with all else that stands there."""
    tree = ast.parse(end, mode="eval").body
    first = next((n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n)), None)
    return first is not None and isinstance(node.ctx, ast.Load) and path_of(node) == path_of(first)


def _masks(place: Place, function: Function, node: ast.Call) -> bool:
    """Whether what counts to an end is compared, there or by its name alone."""
    above, below = place.source.parents.get(node), ast.AST()
    while isinstance(above, (ast.Subscript, ast.Attribute, ast.Call)):
        below, above = above, place.source.parents.get(above)
    if isinstance(above, ast.Compare):
        return True
    name = above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None
    if not isinstance(name, ast.Name) or below is None:
        return False
    every = [n for part in function.body for n in within(part)]
    read = [n for n in every if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)]
    return bool(read) and all(_is_compared(place, n) for n in read)


def _is_compared(place: Place, node: ast.expr) -> bool:
    above = place.source.parents.get(node)
    while isinstance(above, ast.Subscript):
        above = place.source.parents.get(above)
    return isinstance(above, ast.Compare)


def _rest(place: Place, node: ast.Subscript, end: str) -> str:
    """``[:, :4]`` of a part ``[:, :4, :n]``."""
    parts = [":" if place.text(n) == f":{end}" else place.text(n) for n in parts_of(node)]
    while parts and parts[-1] == ":":
        parts.pop()
    return f"[{', '.join(parts)}]" if parts else ""
