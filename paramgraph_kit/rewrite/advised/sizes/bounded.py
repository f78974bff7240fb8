"""Advice for operations that look for their own bounds: they are given them, or are written with tensors for them."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer


def given_its_bounds(place: Place) -> str:
    """``F.one_hot(y)``, ``torch.bincount(y)`` and ``torch.histc(x, bins=10)``."""
    if place.failure.code != "hidden-size":
        return ""
    for call in place.calls("one_hot", "bincount", "histc"):
        own = isinstance(call.func, ast.Attribute) and called(call) == "histc" and len(call.args) < 1
        given = call.func.value if own and isinstance(call.func, ast.Attribute) else call.args[0] if call.args else None
        if given is None:
            continue
        x, text = place.source.bracketed(given), place.text(call)
        options = {o.arg: o.value for o in call.keywords}
        if called(call) == "histc":
            bins = options.get("bins", call.args[1] if len(call.args) > 1 else None)
            number = 100 if bins is None else integer(bins)
            if number is None or {"min", "max"} & options.keys():
                continue
            return (
                "give it limits that you know, `min=` and `max=`; or with those of the device: "
                f"`low, high = {x}.aminmax(); low, high = low - 1.0 * (low == high), high + 1.0 * (low == high)` "
                f"before it, and for `{text}` `torch.zeros({number}, dtype={x}.dtype, device={x}.device)"
                f".scatter_add_(0, (({x} - low) * {number} / (high - low)).long().clamp(max={number - 1}).flatten(), "
                f"torch.ones_like({x}).flatten())`"
            )
        if len(call.args) > 1 or options:
            continue
        if called(call) == "one_hot":
            return (
                f"its width is known on the device alone: give it, `{text[:-1]}, num_classes=n)`, with a number `n` of "
                f"which all of `{place.text(given)}` are less; columns beyond the largest are zeros"
            )
        return (
            f"its length is known on the device alone: with a number `n` of which all of `{place.text(given)}` are "
            f"less `torch.zeros(n, dtype=torch.long, device={x}.device).scatter_add_(0, {x}.long(), "
            f"torch.ones_like({x}, dtype=torch.long))` "
            "counts the same, with zeros beyond the largest"
        )
    return ""


def given_its_rows(place: Place) -> str:
    """``torch.repeat_interleave(x, counts, dim=0)`` and ``x.repeat_interleave(counts)``."""
    if place.failure.code not in ("dynamic-shape", "hidden-size"):
        return ""
    for call in place.calls("repeat_interleave"):
        options = {option.arg: option.value for option in call.keywords}
        of_torch = path_of(call.func) == "torch.repeat_interleave" and len(call.args) > 1
        counts = options.get("repeats", next(iter(call.args[of_torch:]), None))
        if counts is not None and "output_size" not in options:
            n = fresh("rows", place.taken)
            return (
                f"give it how many it makes, `{place.text(call)[:-1]}, output_size={n})`, where the host knows "
                f"`{n} = {place.source.bracketed(counts)}.sum()` before the launch: a number among the arguments, of "
                "which each has a graph; else end what is captured before it, and do it behind the launch"
            )
    return ""
