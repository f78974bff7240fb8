"""Tables that an object keeps on the CPU are made on the device, once, where the object makes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.advice import on_device, tables
from paramgraph_kit.rewrite.edits import Edit
from paramgraph_kit.rewrite.moving import arguments_of
from paramgraph_kit.rewrite.place import Place, called

_SHARED = ("from_numpy", "as_tensor", "asarray", "frombuffer", "pin_memory", "share_memory_")  # the host writes it


def make_it_on_device(place: Place) -> list[Edit]:
    """``self.mean = torch.tensor([...])`` becomes one of the device; ``self.mean.to(x.device)`` does nothing then."""
    found = []
    for path, made, _ in tables(place):
        if not path.startswith("self."):
            continue
        if any(isinstance(n, ast.Call) and called(n) in _SHARED for n in ast.walk(made.value)):
            continue
        place.brought.append(path.rpartition(".")[2])
        found.append(place.source.replace(made.value, on_device(made.value, place.text(made.value), place.device)))
    return found


def gather_there(place: Place) -> list[Edit]:
    """``table.gather(-1, i.cpu())`` looks up where ``i`` is, in tables that were copied there before the function.

    ``table`` is an argument of a function of the file: those that it is called with, global names, are copied.
    """
    function = place.source.function_of(place.statement)
    calls = [call for call in place.calls("gather", "index_select", "take") if isinstance(call.func, ast.Attribute)]
    if function is None or len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return []
    table, reads = calls[0].func.value, [n for n in calls[0].args if isinstance(n, ast.Call) and called(n) == "cpu"]
    names = arguments_of(function)
    if not isinstance(table, ast.Name) or table.id not in names or len(reads) != 1:
        return []
    number, given = names.index(table.id), list[ast.Name]()
    for node in ast.walk(place.source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name:
            one = node.args[number] if len(node.args) > number else None
            if not isinstance(one, ast.Name) or not isinstance(place.space.get(one.id), torch.Tensor):
                return []
            given.append(one)
    assert isinstance(reads[0].func, ast.Attribute)
    edits = [place.source.replace(reads[0], place.text(reads[0].func.value))]
    for one in given:
        there = place.hoist(f"{one.id}_on_device", f"{one.id}.to({place.device})")
        edits.append(place.source.replace(one, there))
    return edits if given else []


@contextmanager
def brought(state: HostState, names: Sequence[str], device: torch.device) -> Iterator[None]:
    """While this lasts the living objects have these attributes on the device."""
    kept: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    for holder in state.holders if names else ():
        for name in names if holder.kind == "attributes" and isinstance(holder.target, dict) else ():
            value = holder.target.get(name)
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                kept.append((holder.target, name, value))
                holder.target[name] = value.detach().to(device)
    try:
        yield
    finally:
        for target, name, value in kept:
            target[name] = value
