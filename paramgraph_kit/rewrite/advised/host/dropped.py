"""Advice for a rate of dropout that moves: dropout takes a number of Python's alone, which a graph freezes."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.asks.moving_slices import found_before
from paramgraph_kit.rewrite.advised.host.from_host import assignments
from paramgraph_kit.rewrite.source.place import Place

_CODES = ("scalar-frozen", "sync-item")


def rate_of_dropout(place: Place) -> str:
    """``F.dropout(x, p=p)`` whose ``p`` the host finds anew: a mask that is drawn with it, from a tensor."""
    if place.failure.code not in _CODES:
        return ""
    for call in place.calls("dropout"):
        options = {option.arg: option.value for option in call.keywords}
        rate = options.get("p", call.args[1] if len(call.args) > 1 else None)
        if not call.args or rate is None or isinstance(rate, ast.Constant):
            continue
        given = (one for each, one in assignments(place) if each == place.text(rate))
        made = next((one.value for one in given if isinstance(one.targets[0], ast.Name)), rate)
        name = f"{rate.id}_in" if isinstance(rate, ast.Name) else "rate_in"
        here = (
            f"and in place of `{place.text(call)}`, which takes a number alone, "
            f"`kept = {place.text(call.args[0])}` and "
            f"`kept * (torch.rand_like(kept) >= {name}) / (1 - {name})`, which draws other numbers at the same rate"
        )
        return found_before(name, place.text(made), "", place, here)
    return ""
