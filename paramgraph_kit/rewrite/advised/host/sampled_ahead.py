"""Advice for rows that a step brings to the device by places which the host draws ahead: ``buffer.sample(16)``."""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.advised.state.groups import is_host_made
from paramgraph_kit.rewrite.source.edits import on_one_line, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, fresh

_COPIED = re.compile(r"_to_copy of (\w+)\[([\d, ]+)\]")  # the first of what a line brings


def sampled_ahead(place: Place) -> str:
    """``s = torch.from_numpy(self.s[idx]).to(device)`` behind ``idx, w = self.sample(16)``, which goes ahead, too."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if function is None or not isinstance(node, ast.Assign) or not isinstance(target, ast.Name):
        return ""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign) and n is not node]
    names = place.local(node.value) - {*arguments_of(function)}
    makers = {n for n in every if stored([n]) & names and n.lineno < node.lineno}
    if len(makers) != 1 or not all(is_host_made(place, function, each, but=node) for each in names):
        return ""
    (made,) = makers
    if made not in function.body or node not in function.body or names - stored([made]):
        return ""
    found = _COPIED.search(place.failure.message)
    if found is None:
        return ""
    is_method = isinstance(place.source.parents.get(function), ast.ClassDef)
    held, text = "self." * is_method + fresh(f"{target.id}_in", place.taken), on_one_line(place.text(node.value))
    sizes = found[2] if "," in found[2] else f"{found[2]},"
    return (
        f"once `{held} = torch.zeros(({sizes}), dtype=torch.{found[1]}, device={place.device})`, before each "
        f"launch line {made.lineno}, `{on_one_line(place.text(made))}`, and behind it `{held}.copy_({text})`, and here "
        f"`{target.id} = {held}`"
    )
