"""Advice for a record that each step makes anew of the last one: its tensors stay, its numbers are the host's."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch

from paramgraph_kit.rewrite.expressions.state.carried import held_by
from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of

_CODES = ("stale-input", "scalar-frozen", "host-counter")


def rebuilt_record(place: Place) -> str:
    """``state = {**state, "m": m, "k": k + 1}``, ``st = replace(st, n=n)``, and what is read of such in the step."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in _CODES or function is None:
        return ""
    read = {path_of(n) for n in ast.walk(place.statement) if isinstance(n, (ast.Name, ast.Attribute))}
    for node in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        target = target_of(node)
        path = path_of(target) if target is not None else ""
        if path and path in read and (fields := _fields(node.value, path)):
            return _advice(place, function, node, path, fields)
    return ""


def _fields(value: ast.expr, path: str) -> dict[str, ast.expr]:
    """What a record gets anew, by name, where the rest of it is that of the last one."""
    if isinstance(value, ast.Dict):
        kept = [path_of(each) for key, each in zip(value.keys, value.values, strict=True) if key is None]
        pairs = zip(value.keys, value.values, strict=True)
        entries = {k.value: v for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str)}
        return entries if kept == [path] and len(entries) + 1 == len(value.keys) else {}
    if not isinstance(value, ast.Call):
        return {}
    of = value.func.value if isinstance(value.func, ast.Attribute) and called(value) == "_replace" else None
    if called(value) == "replace" and len(value.args) == 1:
        of = value.args[0]
    named = {each.arg: each.value for each in value.keywords if each.arg is not None}
    return named if of is not None and path_of(of) == path and len(named) == len(value.keywords) else {}


def _advice(place: Place, function: Function, node: ast.Assign, path: str, fields: Mapping[str, ast.expr]) -> str:
    record = held_by(place, path)
    held = {name: record.get(name) if isinstance(record, dict) else getattr(record, name, None) for name in fields}
    kept = [name for name, value in held.items() if isinstance(value, torch.Tensor)]
    counts = [name for name, value in held.items() if type(value) in (bool, int, float)]
    if not kept or len(kept) + len(counts) != len(fields):
        return ""
    own = {name: _of_host(place, function, fields[name], path) for name in counts}
    if not all(own.values()):
        return ""
    entry = {name: _entry(path, name, record) for name in fields}
    new = {name: fresh(f"new_{name}", place.taken) for name in kept}
    lines = [f"{new[name]} = {place.text(fields[name])}" for name in kept]
    lines += [f"{entry[name]}.copy_({new[name]})" for name in kept]
    text = f"the tensors of `{path}` stay where they are: in place of line {node.lineno} `{'; '.join(lines)}`"
    text += f", and `.clone()` of what is returned of `{path}`"
    if not counts:
        return text
    again = ", ".join(f"{name}={own[name]}" for name in counts)
    if isinstance(record, dict):
        again = f"{path} = {{**{path}, {', '.join(f'{name!r}: {own[name]}' for name in counts)}}}"
    else:
        assert isinstance(node.value, ast.Call)
        given = [path] if called(node.value) == "replace" else []
        again = f"{path} = {place.text(node.value.func)}({', '.join([*given, again])})"
    fed = {name: fresh(f"{name}_in", place.taken) for name in counts}
    made = [f"{fed[name]} = torch.tensor({entry[name]}, device={place.device})" for name in counts]
    fill = [f"{fed[name]}.fill_({entry[name]})" for name in counts]
    here = [f"`{fed[name]}` for `{entry[name]}`" for name in counts]
    return (
        f"{text}; its numbers are the host's: once `{'; '.join(made)}`, before each launch `{'; '.join(fill)}`, in the "
        f"step {' and '.join(here)}, and behind each launch `{again}`"
    )


def _entry(path: str, name: str, record: Any) -> str:
    return f"{path}[{name!r}]" if isinstance(record, dict) else f"{path}.{name}"


def _of_host(place: Place, function: Function, value: ast.expr, path: str) -> str:
    """An expression as the host may write it behind the launch: a local name is what was assigned to it, or ""."""
    outer = {path.partition(".")[0]}  # what has the record lives outside
    if not place.local(value) - outer:
        return place.text(value)
    made = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    given = [n.value for n in made if isinstance(value, ast.Name) and [ast.unparse(t) for t in n.targets] == [value.id]]
    return place.text(given[0]) if len(given) == 1 and not place.local(given[0]) - outer else ""
