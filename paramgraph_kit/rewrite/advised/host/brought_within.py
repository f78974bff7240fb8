"""A tensor that a statement makes of the host's within something larger: ``net(x, torch.tensor(slots, device=d))``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_MADE = {"tensor-literal": ("tensor", "as_tensor"), "copy-to-gpu": ("to", "cuda")}


def brought_within(place: Place) -> str:
    """What becomes of that call alone, with the lines of the step that make what it is of."""
    function, value = place.source.function_of(place.statement), getattr(place.statement, "value", None)
    made = _MADE.get(place.failure.code, ())
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call) and called(n) in made] if value is not None else []
    if function is None or len(calls) != 1 or calls[0] is value or draws(calls[0]):
        return ""
    call, names = calls[0], sorted(place.local(calls[0]) - {"self"})
    if not names or {*names} & place.tensors.keys():
        return ""
    before = [n for part in function.body for n in within(part) if isinstance(n, (ast.Assign, ast.AugAssign))]
    before = [n for n in before if n.lineno < call.lineno and {*names} & stored([n])]
    if any({*names_in(n)} & place.tensors.keys() or _reads(n) for n in before):
        return ""  # the step itself computes it
    given, text = fresh(f"{names[0]}_in", place.taken), place.text(call)
    lines = ", ".join(str(n.lineno) for n in before)
    along = f", with what line {lines} does," if before else ""
    return (
        f"`{text}` belongs before each launch: once `{given} = {text}`, before each launch{along} "
        f"`{given}.copy_({text})`, and here `{given}` for `{text}`{for_each_call(place.helper)}"
    )


def for_each_call(helper: str) -> str:
    """What is said of a tensor that belongs to one call of a helper."""
    return f"; one for each time that a step calls `{helper}`" if helper else ""


def _reads(node: ast.stmt) -> bool:
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any(called(n) in ("item", "tolist", "cpu", "numpy") or path_of(n.func) in ("int", "float") for n in calls)
