"""Advice for numbers of the device of which the host asks whether they are in a list: the device can ask itself."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import within
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called, target_of


def is_in_a_list(place: Place) -> str:
    """``special = [[t in SPECIAL for t in row] for row in ids.tolist()]``."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if place.failure.code != "copy-to-cpu" or not isinstance(target, ast.Name) or function is None:
        return ""
    made = node.value if isinstance(node, ast.Assign) else None
    inner, names = made, list[str]()
    while isinstance(inner, ast.ListComp) and len(inner.generators) == 1 and not inner.generators[0].ifs:
        names += [n.id for n in ast.walk(inner.generators[0].target) if isinstance(n, ast.Name)]
        inner = inner.elt
    asks = inner.ops[0] if isinstance(inner, ast.Compare) and len(inner.ops) == 1 else None
    if not isinstance(inner, ast.Compare) or not isinstance(asks, (ast.In, ast.NotIn)) or not names:
        return ""
    listed, asked = inner.comparators[0], inner.left
    if not isinstance(asked, ast.Name) or asked.id != names[-1] or not _are_numbers(place, listed):
        return ""
    assert isinstance(made, ast.ListComp)
    read = made.generators[0].iter
    while (
        isinstance(read, ast.Call)
        and called(read) in ("tolist", "cpu", "numpy")
        and isinstance(read.func, ast.Attribute)
    ):
        read = read.func.value
    x, sign = place.text(read), "~" * isinstance(asks, ast.NotIn)
    held = f"{target.id}_on_device"
    later = [n for part in function.body for n in within(part) if isinstance(n, ast.Call) and n.args]
    copies = [
        n for n in later if called(n) in ("tensor", "as_tensor", "BoolTensor") and place.text(n.args[0]) == target.id
    ]
    more = f", and `{target.id}` for `{place.text(copies[0])}` at line {copies[0].lineno}" if copies else ""
    kept = f"{held} = torch.tensor(list({place.text(listed)}), device={place.device})"
    return f"the device can ask that itself: once `{kept}`, here `{target.id} = {sign}torch.isin({x}, {held})`{more}"


def _are_numbers(place: Place, node: ast.expr) -> bool:
    """Whether a list, a set or the keys of a dictionary around the function are whole numbers."""
    value = place.space.get(node.id) if isinstance(node, ast.Name) and not place.local(node) else None
    if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Call):
        value = place.attributes.get(node.attr)
    plain = isinstance(value, (list, tuple, set, frozenset, dict)) and bool(value)
    return plain and all(type(each) in NUMBER and type(each) is int for each in value or ())
