"""Advice for lists of copies that a loop fills, and reads again: `xs.append(x.to("cpu"))`, `xs[-1].to(device)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import within
from paramgraph_kit.rewrite.source.place import Place, called

_COPIES = ("cpu", "to", "numpy", "tolist")


def copied_into_a_list(place: Place) -> str:
    """`xs.append(x.to("cpu"))` in the rounds of a loop: the tensor itself waits in the list."""
    if place.failure.code != "copy-to-cpu" or not place.loops():
        return ""
    for name, call, whole in _appends(place, [place.statement]):
        value = place.text(whole)
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if inner is None or not place.is_local(name):
            continue
        again = value.replace(place.text(inner), "each", 1)
        others = [n.lineno for n, _ in _reads(place, name)]
        and_there = f" (line {others[0]}, which copies one back, does nothing then)" if others else ""
        return (
            f"`{name}.append({place.text(inner)})` keeps the tensor of the device, which the graph "
            f"returns in it, and behind the launch `{name} = [{again} for each in {name}]`{and_there}"
        )
    return ""


def copied_back(place: Place) -> str:
    """`xs[-1].to(device)` of a list that the loop fills with copies."""
    if place.failure.code != "copy-to-gpu":
        return ""
    function = place.source.function_of(place.statement)
    for name in sorted(place.local(place.statement)):
        reads = [call for at, call in _reads(place, name) if at is place.statement]
        filled = [call for each, call, _ in _appends(place, function.body if function else []) if each == name]
        if reads and filled:
            return (
                f"stays as it is, and copies nothing, once line {filled[0].lineno} keeps the tensors of the device in "
                f"`{name}`"
            )
    return ""


def _appends(place: Place, block: list[ast.stmt]) -> Iterator[tuple[str, ast.Call, ast.expr]]:
    """The lists that statements append copies to, with what copies and all that is appended."""
    for node in (n for part in block for n in within(part)):
        if not isinstance(node, ast.Call) or called(node) != "append" or len(node.args) != 1:
            continue
        copies = [n for n in ast.walk(node.args[0]) if isinstance(n, ast.Call) and called(n) in _COPIES]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if copies and isinstance(owner, ast.Name):
            yield owner.id, copies[-1], node.args[0]


def _reads(place: Place, name: str) -> Iterator[tuple[ast.stmt, ast.Call]]:
    """Where one of a list is copied to the device: `xs[-1].to(device)`."""
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        if (
            not isinstance(node, ast.Call)
            or called(node) not in ("to", "cuda")
            or not isinstance(node.func, ast.Attribute)
        ):
            continue
        picked = node.func.value
        if isinstance(picked, ast.Subscript) and isinstance(picked.value, ast.Name) and picked.value.id == name:
            yield next(place.source.above(node)), node


LISTED = (copied_into_a_list, copied_back)
