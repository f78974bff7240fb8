"""Advice for a copy of pinned memory that waits: the same without that, in the user's names, and when to wait then."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place

_COPIES = ("copy_", "to", "cuda")


def without_waiting(place: Place) -> str:
    """``buf.copy_(host)`` with ``host`` in pinned memory: the graph holds the copy, and the host keeps off."""
    if place.failure.code != "blocking-copy":
        return ""
    calls = [
        call for call in place.calls(*_COPIES) if isinstance(call.func, ast.Attribute) and path_of(call.func.value)
    ]
    if len(calls) != 1 or any(each.arg in (None, "non_blocking") for each in calls[0].keywords):
        return ""
    call = calls[0]
    owner = call.func.value  # type: ignore[attr-defined]
    copies = call.func.attr == "copy_"  # type: ignore[attr-defined]
    if copies and (len(call.args) != 1 or not path_of(call.args[0])):
        return ""
    given = ", ".join([*map(place.text, (*call.args, *(each.value for each in call.keywords))), "non_blocking=True"])
    if call.keywords or (not copies and len(call.args) > 1):
        return ""
    new = f"{place.text(call.func)}({given})"
    into = place.value(path_of(owner)) if copies else None
    to_host = isinstance(into, torch.Tensor) and into.device.type == "cpu"
    host = place.text(owner if to_host or not copies else call.args[0])
    what = "reads" if to_host else "writes"
    return (
        f"`{new}`, which each launch does with the memory that `{host}` has now: keep that, and before the host {what} "
        "it wait for the launch, `torch.cuda.current_stream().synchronize()`"
    )
