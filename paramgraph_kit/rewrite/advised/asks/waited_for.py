"""Advice for a value that is read and decides what the step does next: its line alone cannot go behind the launch."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place

_PICKS = (
    "what is read picks what runs, `{}`, and a graph has that of its capture: run all of them, each for all rows, and "
    "weigh with a mask of those that are its own; else this line goes behind the launch with all lines behind it"
)
_DECIDES = (
    "what is read decides what is written to `{}` below: keep it on the device as a tensor, of which `torch.where` "
    "takes both ways; else this line goes behind the launch with all lines behind it"
)


def unless_waited_for(place: Place, said: str) -> str:
    """What is said of a line that would go behind the launch, or what to do where the step waits for it."""
    unsaid = not said and place.failure.code == "tensor-bound"
    return (_waited_for(place) if unsaid or said.startswith("belongs behind the launch") else "") or said


def _waited_for(place: Place) -> str:
    """``expert = self.experts[e]``, which is called below, and ``last = ids.tolist()``, by which logits are masked."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if function is None or not isinstance(target, ast.Name):
        return ""
    every = [n for part in function.body for n in within(part) if getattr(n, "lineno", 0) > node.lineno]
    picks = isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
    if picks and any(isinstance(n, ast.Call) and path_of(n.func) == target.id for n in every):
        return _PICKS.format(target.id)
    tensors = {*place.seen, *place.tensors, *arguments_of(function)}
    for branch in (n for n in every if isinstance(n, ast.If)):
        if not any(isinstance(n, ast.Name) and n.id == target.id for n in ast.walk(branch.test)):
            continue
        inside = [n for part in (*branch.body, *branch.orelse) for n in within(part) if isinstance(n, ast.Subscript)]
        written = [path_of(n.value) for n in inside if isinstance(n.ctx, ast.Store)]
        if named := next((path for path in written if path in tensors), ""):
            return _DECIDES.format(named)
    return ""
