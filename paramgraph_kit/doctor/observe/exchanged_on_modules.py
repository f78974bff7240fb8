"""Buffers, parameters and modules that a call exchanges on a module: a graph goes on with those of its capture."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.given_to_operations import NO_KERNELS
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.source_lines import frame_at, written_at
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame

_TABLES = ("_buffers", "_parameters", "_modules")


def exchanged(
    changes: Iterable[Change],
    steps: Sequence[Step],
    codes: Collection[CodeType],
    known: Iterable[Failure],
    made_by: Mapping[int, int] = MappingProxyType({}),
) -> Iterator[Failure]:
    """What a call has exchanged although the next one reads it, where that is written or else where it is read.

    ``made_by``: by their ids, which operations have made tensors of optimizers' states that are others now.
    """
    readers = dict[int, Step]()
    for step in steps:
        for key in step.outside:
            readers.setdefault(key, step)
    told: set[Frame | None] = {failure.frame for failure in known}
    for change in sorted(changes, key=_is_buffer):
        gone = _memory(change.before) - _memory(change.after)
        reader = next((readers[key] for key in gone if key in readers), None)
        if reader is None:
            continue
        if change.owner:  # of an optimizer: what its own step exchanges is its own
            place = _made_at(steps, made_by.get(id(change.after), 0))
            if place is not None and any("/torch/optim/" in file for file in place.files):
                continue
            frame = _set_at(change.name, codes, ()) or (place.frame() if place is not None else None)
        else:
            frame = written_at(change, codes) or _set_at(change.name, codes) or reader.place.frame()
        if frame in told or (frame is None and change.owner):
            continue
        told.add(frame)
        code = "stale-input" if _is_buffer(change) else "parameter-rebound"
        kind = "module" if isinstance(change.before, torch.nn.Module) else "tensor"
        yield BY_ID[code].failure(f"{change.name} is another {kind} after each call", frame)


def _made_at(steps: Iterable[Step], number: int) -> Place | None:
    """Where an operation of the device stands."""
    counted = (step for step in steps if step.on_device and step.name not in NO_KERNELS)
    return next((step.place for n, step in enumerate(counted, 1) if n == number), None)


def _is_buffer(change: Change) -> bool:
    return isinstance(change.before, torch.Tensor) and not isinstance(change.before, torch.nn.Parameter)


def _memory(value: Any) -> set[int]:
    """What a tensor, or all of a module, lies in."""
    tensors = [*value.parameters(), *value.buffers()] if isinstance(value, torch.nn.Module) else [value]
    return {storage_key(tensor) for tensor in tensors}


def _set_at(name: str, codes: Collection[CodeType], tables: Collection[str] = _TABLES) -> Frame | None:
    """The line that gives a module something by what it is registered as: ``m._buffers[name] = t``, ``assign=True``.

    Without ``tables`` it is an entry of anything that has exactly this name: ``optimizer.state[p]["exp_avg"] = t``.
    """
    nodes = [(code, node) for code in codes for node in nodes_of(code)]
    lines = [(code, node.lineno) for code, node in nodes if _sets(node, name, tables)]  # type: ignore[attr-defined]
    return frame_at(*lines[0]) if lines else None


def _sets(node: ast.AST, name: str, tables: Collection[str]) -> bool:
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        entries = [each for each in targets if isinstance(each, ast.Subscript)]
        if not tables:
            return any(isinstance(each.slice, ast.Constant) and each.slice.value == name for each in entries)
        return any(_may_be(each.slice, name) for each in entries if last_name(each.value) in tables)
    if not tables or not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr == "update" and last_name(node.func.value) in _TABLES:
        return bool(node.args) or any(keyword.arg in (None, name) for keyword in node.keywords)
    if node.func.attr == "set_submodule" and node.args:
        return _may_be(node.args[0], name)
    return any(keyword.arg == "assign" for keyword in node.keywords)


def _may_be(key: ast.expr, name: str) -> bool:
    return not isinstance(key, ast.Constant) or str(key.value).rpartition(".")[2] == name
