"""Advice for calls whose error the user's own lines wait for, to try again or to do something else."""

from __future__ import annotations

from paramgraph_kit.rewrite.expressions.calls import LINALG, LINALG_ERROR
from paramgraph_kit.rewrite.source.caught import hears
from paramgraph_kit.rewrite.source.place import Place, called

_ERRORS = {"linalg-check": LINALG_ERROR, "clip-check": RuntimeError, "argument-check": ValueError}


def waits_for_its_error(place: Place) -> str:
    """``try: return torch.linalg.cholesky(k)`` with ``except RuntimeError:`` that makes another try."""
    error = _ERRORS.get(place.failure.code)
    handler = hears(place.source, place.statement, error, place.space) if error is not None else None
    if handler is None:
        return ""
    function = place.source.function_of(place.statement)
    own = f"`{function.name}`" if function is not None else "the function"
    head = f"`{place.source.lines[handler.lineno - 1].strip()}` (line {handler.lineno})"
    call = next(iter(place.calls(*LINALG)), None)
    name = f"linalg.{called(call)}" if call is not None else ""
    if call is None or not place.text(call.func).endswith(name):
        return f"{head} waits for what this call reads of the device: leave {own} out of what is captured"
    given = "made" if "[" in LINALG[called(call)] else "made[0]"
    made = place.text(call).replace(name, f"{name}_ex", 1)
    return (
        f"{head} waits for its error, which no graph can raise: capture a copy of {own} that makes the first try "
        f"alone, with `*made, info = {made}` and `{given}` in place of the call, and returns `info` too; behind each "
        f"launch, where `info.any()`, call {own} as it is, not captured"
    )
