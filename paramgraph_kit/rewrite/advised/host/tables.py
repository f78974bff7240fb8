"""Tables that an object keeps on the CPU are made on the device, once, where the object makes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.rewrite.advised.host.from_host import assignments
from paramgraph_kit.rewrite.advised.host.on_cpu import on_device, tables
from paramgraph_kit.rewrite.expressions.makes.literals import is_of_the_device, is_only_read, is_table
from paramgraph_kit.rewrite.source.edits import Edit, heads, path_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_SHARED = ("from_numpy", "as_tensor", "asarray", "frombuffer", "pin_memory", "share_memory_")  # the host writes it

_LARGEST = 2**24  # bytes of a table of which the device gets a copy


def make_it_on_device(place: Place) -> list[Edit]:
    """``self.mean = torch.tensor([...])`` becomes one of the device; ``self.mean.to(x.device)`` does nothing then."""
    found = []
    for path, made, _ in tables(place):
        held = place.value(path)
        if not path.startswith("self.") or not (held is None or isinstance(held, torch.Tensor)):
            continue  # an array has other methods, and what lives of it is not brought
        if any(isinstance(n, ast.Call) and called(n) in _SHARED for n in ast.walk(made.value)):
            continue
        place.brought.append(path.rpartition(".")[2])
        found.append(place.source.replace(made.value, on_device(made.value, place.text(made.value), place.device)))
        place.brought.extend(_made_of(place, made, place.brought))
    return found


def _made_of(place: Place, made: ast.Assign, names: Sequence[str]) -> Iterator[str]:
    """Other attributes that are made of some, where these are: ``self.alphas = 1 - self.betas``."""
    function, known = place.source.function_of(made), set(names)
    for node in function.body if function is not None else ():
        target = target_of(node)
        if not isinstance(node, ast.Assign) or not isinstance(target, ast.Attribute) or target.attr in known:
            continue
        read = {n.attr for n in ast.walk(node.value) if isinstance(n, ast.Attribute) and path_of(n.value) == "self"}
        if read & known and isinstance(place.attributes.get(target.attr), torch.Tensor):
            known.add(target.attr)
            yield target.attr


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
    if isinstance(table, ast.Name) and len(reads) == 1 and is_table(place, table.id):
        there = place.hoist(f"{table.id}_on_device", f"{table.id}.to({place.device})")
        assert isinstance(reads[0].func, ast.Attribute)
        index = place.text(reads[0].func.value)
        return [place.source.replace(table, there), place.source.replace(reads[0], index)]
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


def pick_from_a_copy(place: Place) -> list[Edit]:
    """``a = alphas[t].to(device)`` picks of a table around the function, which was copied before it, once."""
    picks = [(place.statement, n) for n in heads(place.statement) if isinstance(n, ast.Subscript)]
    if place.failure.code == "cpu-scalar-frozen":  # told where it is used
        picks += [(made, made.value) for _, made in assignments(place) if isinstance(made.value, ast.Subscript)]
    edits = []
    for statement, node in picks:
        table = node.value
        if not isinstance(table, ast.Name) or not is_table(place, table.id):
            continue
        held = place.space[table.id]
        if not isinstance(held, torch.Tensor) or held.nbytes > _LARGEST:  # a whole data set stays where it is
            continue
        if is_of_the_device(place, node.slice) or not is_only_read(place, statement):
            continue
        there = place.hoist(f"{table.id}_on_device", f"{table.id}.to({place.device})")
        attribute = place.source.parents.get(node)
        copy = place.source.parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
        if isinstance(copy, ast.Call) and _copies_there(place, copy):
            edits.append(place.source.replace(copy, f"{there}[{place.text(node.slice)}]"))
        else:
            edits.append(place.source.replace(table, there))
    return edits


def _copies_there(place: Place, call: ast.Call) -> bool:
    """Whether ``x.to(...)`` or ``x.cuda()`` copies to the device, and does nothing else."""
    if called(call) == "cuda":
        return True
    targets = [*call.args, *(o.value for o in call.keywords if o.arg == "device")]
    if called(call) != "to" or len(targets) != 1 or {o.arg for o in call.keywords} - {"device", "non_blocking"}:
        return False
    known = place.space.get(place.text(targets[0])) if not place.local(targets[0]) else None
    own = isinstance(targets[0], ast.Attribute) and targets[0].attr == "device"
    return own or place.text(targets[0]) == place.device or isinstance(known, (torch.device, str))


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
