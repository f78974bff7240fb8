"""``max`` and ``min`` of Python's over what the device has found."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called


def _of_all(place: Place, call: ast.Call) -> str:
    """``max(norm(r) for r in x)``, whose numbers the host compares, as one of all that are stacked."""
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not isinstance(given, (ast.GeneratorExp, ast.ListComp)) or any(each.ifs for each in given.generators):
        return ""
    text = place.text(given)
    text = text[1:-1] if text[0] in "([" else text
    return f"torch.stack([{text}]).{call.func.id}()" if isinstance(call.func, ast.Name) else ""


def larger_on_device(place: Place) -> list[Edit]:
    """``max(x, 1.0)`` becomes ``x.clamp(min=1.0)``, and ``max(x, y)`` becomes ``torch.maximum(x, y)``."""
    found = []
    for call in place.calls("max", "min"):
        if isinstance(call.func, ast.Name) and call.func.id not in place.space and (text := _of_all(place, call)):
            found.append(place.source.replace(call, text))
            continue
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
