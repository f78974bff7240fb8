"""What lines behind a launch write in place: the graph goes on with the tensor that was there at its capture."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.source.ahead_of import begins_with_none, is_read_ahead, sized_by_values
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.place import Place

SIZED = (
    "; `{path}` is as large as the device finds, and a graph that reads it keeps the memory of its capture: give it as "
    "many places as there can be, with a mask of those that count, or capture again where it has got another size"
)


def kept_in_place(place: Place, line: int) -> str:
    """Words for ``self.y = new`` from a line on, where a tensor is there that the graph reads; "" without any."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    assigns = [n for n in every if isinstance(n, ast.Assign) and n.lineno >= line and len(n.targets) == 1]
    told = [text for node in assigns if not _is_sized(place, node) and (text := _in_place(place, node, line))]
    sized = [path_of(n.targets[0]) for n in assigns if _is_sized(place, n) and _in_place(place, n, line)]
    kept = f"; there {', '.join(told)}, as a graph goes on with the tensor that it was captured with" if told else ""
    return kept + "".join(SIZED.format(path=path) for path in dict.fromkeys(sized))


def _is_sized(place: Place, node: ast.Assign) -> bool:
    masks = [name for name, form in place.forms.items() if form.dtype is torch.bool]
    return sized_by_values(place.source, place.source.function_of(place.statement), node.value, masks)


def _in_place(place: Place, node: ast.Assign, line: int) -> str:
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Attribute):
        path = path_of(target)
        if not _is_read_ahead(place, path, line) or not _is_tensor(place, path, value):
            return ""
        there = isinstance(place.value(path), torch.Tensor) and not begins_with_none(place.source.tree, target.attr)
        first = "" if there else " once a first call has made one"
        return f"`{path}.copy_({place.text(value)})` for `{place.text(node)}`{first}"
    parts, given = getattr(target, "elts", []), getattr(value, "elts", [])
    paths = [path_of(each) for each in parts]
    if len(parts) != 2 or [path_of(each) for each in reversed(given)] != paths or not all("." in p for p in paths):
        return ""
    if not any(_is_read_ahead(place, p, line) for p in paths):
        return ""
    if not all(isinstance(place.value(p), torch.Tensor) for p in paths):
        return ""
    one, other = paths
    swap = f"`kept = {one}.clone()`, `{one}.copy_({other})` and `{other}.copy_(kept)`"
    return f"{swap} for `{place.text(node)}`"


def _is_read_ahead(place: Place, path: str, line: int) -> bool:
    """Whether what is captured ahead of that reads it: its function's lines, or another function, by the last name."""
    function, name = place.source.function_of(place.statement), path.rpartition(".")[2]
    return "." in path and is_read_ahead(place.source, function, name, line, place.entry)


def _is_tensor(place: Place, path: str, value: ast.expr) -> bool:
    held = place.value(path)
    if isinstance(held, torch.Tensor):
        return held.device.type != "cpu" or place.device.strip("\"'") == "cpu"
    return held is None and isinstance(value, ast.Name) and value.id in {*place.tensors, *place.seen}
