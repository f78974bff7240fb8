"""Advice for draws on the device below a number that the host counts: ``torch.randint(0, self.size, (n,))``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.host.from_host import assignments
from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place, fresh, integer

_KEPT = ("device", "generator")


def drawn_below(place: Place) -> str:
    """Fractions of a tensor that holds the number, as many as were drawn: ``randint`` takes no tensor."""
    if place.failure.code != "size-frozen" or not place.failure.message.startswith("randint got "):
        return ""
    made = dict(assignments(place))
    for call in place.calls("randint"):
        ends, size = call.args[:-1], call.args[-1] if call.args else None
        high = ends[-1] if ends else None
        low = integer(ends[0]) if len(ends) == 2 else 0 if len(ends) == 1 else None
        if path_of(call.func) != "torch.randint" or low != 0 or high is None or size is None:
            continue
        text = place.text(high)
        if any(isinstance(n, ast.Name) and n.id != "self" and n.id in place.local(high) for n in ast.walk(high)):
            one = made.get(path_of(high))
            if one is None or len(one.targets) > 1 or place.local(one.value) - {"self"}:
                continue
            text = place.text(one.value)
        if {k.arg for k in call.keywords} - {*_KEPT}:
            continue
        name = fresh(f"{path_of(high).rpartition('.')[2] or 'high'}_in", place.taken)
        options = "".join(f", {place.text(k)}" for k in call.keywords)
        return (
            f"once `{name} = torch.ones((), dtype=torch.long, device={place.device})`, before each launch, behind what "
            f"gives it another value, `{name}.fill_({text})`, here `(torch.rand({place.text(size)}{options}) * {name})"
            f".long().clamp(max={name} - 1)` for `{place.text(call)}`: other numbers than before, drawn as evenly"
        )
    return ""
