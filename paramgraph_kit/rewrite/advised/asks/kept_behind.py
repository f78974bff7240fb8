"""What lines behind a launch write in place: the graph goes on with the tensor that was there at its capture."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.place import Place


def kept_in_place(place: Place, line: int) -> str:
    """Words for ``self.y = new`` from a line on, where a tensor is there that the graph reads; "" without any."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    assigns = [n for n in every if isinstance(n, ast.Assign) and n.lineno >= line and len(n.targets) == 1]
    told = [text for node in assigns if (text := _in_place(place, node, line))]
    return f"; there {', '.join(told)}, as a graph goes on with the tensor that it was captured with" if told else ""


def _in_place(place: Place, node: ast.Assign, line: int) -> str:
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Attribute):
        path = path_of(target)
        if not _is_read_ahead(place, path, line) or not _is_tensor(place, path, value):
            return ""
        first = "" if isinstance(place.value(path), torch.Tensor) else " once a first call has made one"
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
    """Whether lines of the function ahead of that read it, or another function does, by the same last name."""
    function, name = place.source.function_of(place.statement), path.rpartition(".")[2]
    reads = (n for n in ast.walk(place.source.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return "." in path and any(n.attr == name and (n.lineno < line or _apart(place, n, function)) for n in reads)


def _apart(place: Place, node: ast.AST, function: ast.AST | None) -> bool:
    return place.source.function_of(node) is not function


def _is_tensor(place: Place, path: str, value: ast.expr) -> bool:
    held = place.value(path)
    if isinstance(held, torch.Tensor):
        return held.device.type != "cpu" or place.device.strip("\"'") == "cpu"
    return held is None and isinstance(value, ast.Name) and value.id in {*place.tensors, *place.seen}
