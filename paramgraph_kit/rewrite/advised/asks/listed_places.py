"""Advice for places that a list of the host's holds: ``cache[i, :, lengths[i]] = k[i]`` of several requests."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import heads, path_of
from paramgraph_kit.rewrite.source.place import Place, called


def listed_places(place: Place) -> str:
    """The whole list in one tensor, which each launch reads: a tensor of one place is read by no host."""
    if place.failure.code != "size-frozen" or not place.failure.message.startswith("select got "):
        return ""
    statement, lists, text = place.statement, dict[str, str](), place.text(place.statement)
    for node in (n for n in heads(statement) if isinstance(n, ast.Subscript)):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        at = [number for number, part in enumerate(parts) if _list_of(place, part)]
        if not at or at != [*range(at[0], at[-1] + 1)] or not all(map(_keeps_its_place, parts[: at[0]])):
            continue
        before = sum(isinstance(part, ast.Slice) for part in parts[: at[0]])
        told = [place.text(part) for part in parts]
        for number in at:
            path, name = _list_of(place, parts[number]) or ("", "")
            lists[path] = name
            told[number] = f"{name}{place.text(parts[number]).removeprefix(path)}.reshape(1)"
        picked = f"{place.text(node.value)}[{', '.join(told)}]"
        if isinstance(node.ctx, ast.Load):
            text = text.replace(place.text(node), f"{picked}.squeeze({before})")
        elif isinstance(statement, (ast.Assign, ast.AugAssign)):
            given = place.text(statement.value)
            wide = before and not isinstance(statement.value, ast.Constant)
            value = f"{place.source.bracketed(statement.value)}.unsqueeze({before})" if wide else given
            text = text.replace(place.text(node), picked).removesuffix(given) + value
    if not lists:
        return ""
    made = {path: f"torch.tensor({path}, device={place.device})" for path in lists}
    once = " and ".join(f"`{name} = {made[path]}`" for path, name in lists.items())
    filled = " and ".join(f"`{name}.copy_({made[path]})`" for path, name in lists.items())
    return f"once {once}, before each launch {filled}, and here `{text}`"


def _list_of(place: Place, part: ast.expr) -> tuple[str, str] | None:
    """What holds a place, and the tensor for it; None for what is no entry of a list."""
    if not isinstance(part, ast.Subscript) or isinstance(part.slice, (ast.Slice, ast.Tuple, ast.Call)):
        return None
    path = path_of(part.value)
    value = [] if path and place.is_local(path) and not path.startswith("self.") else place.value(path)
    return (path, f"{path.rpartition('.')[2]}_in") if path and isinstance(value, (list, tuple)) else None


def _keeps_its_place(part: ast.expr) -> bool:
    """Whether what stands ahead of a place is one number, or a whole dimension."""
    if isinstance(part, ast.Slice):
        return True
    number = isinstance(part, ast.Constant) and type(part.value) is int
    return number or isinstance(part, ast.Name) or (isinstance(part, ast.Call) and called(part) == "int")
