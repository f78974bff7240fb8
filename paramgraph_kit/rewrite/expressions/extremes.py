"""``max`` and ``min`` of Python's over what the device has found."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.hosted import is_given
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called


def larger_on_device(place: Place) -> list[Edit]:
    """``max(x, 1.0)`` becomes ``x.clamp(min=1.0)``, and ``max(x, y)`` becomes ``torch.maximum(x, y)``."""
    found = []
    for call in place.calls("max", "min"):
        several = not call.keywords and len(call.args) > 1 and not any(isinstance(n, ast.Starred) for n in call.args)
        if not isinstance(call.func, ast.Name) or not several:
            continue
        known = [each for each in call.args if is_given(place, each)]
        there = [each for each in call.args if each not in known]
        if not there or len(known) > 1:
            continue
        name = "min" if called(call) == "max" else "max"
        text = place.text(there[0])
        for other in there[1:]:
            text = f"torch.{called(call)}imum({text}, {place.text(other)})"
        if known:
            x = place.source.bracketed(there[0]).replace(".item()", "") if len(there) == 1 else text
            text = f"{x}.clamp({name}={place.text(known[0])})"
        found.append(place.source.replace(call, text))
    return found
