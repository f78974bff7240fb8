"""Advice for what an object or the file keeps on the CPU: where it is made, and how it is made on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
import torch

from paramgraph_kit.rewrite.advised.host.from_host import BROUGHT, assignments
from paramgraph_kit.rewrite.expressions.picks.sizes import DRAWN, FACTORIES
from paramgraph_kit.rewrite.source.edits import heads, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called

HELD = (*BROUGHT, "mixed-devices")
_MAKERS = "tensor as_tensor from_numpy load cumprod cumsum stack cat"
_OF_OLD = ("FloatTensor", "LongTensor", "IntTensor", "BoolTensor", "DoubleTensor", "Tensor")  # torch.Tensor([1.0])
_MOVED = ("Parameter", "UninitializedParameter", "Buffer")  # the model's `.to` takes them along; copied they are none
_ON_CPU = (*FACTORIES, *DRAWN, *_MAKERS.split(), *_OF_OLD)


def kept_on_cpu(place: Place) -> str:
    """A table that an object or the file has, and that is copied again at each step, or refused."""
    if place.failure.code not in HELD:
        return ""
    for path, made, module in tables(place):
        what = "is on the CPU" if place.failure.code == "mixed-devices" else "is copied from the CPU at each step"
        there = made_on_device(place, path, made, module)
        return f"`{path}` {what}: make it on the device once, at line {made.lineno} {there}{_read_there(place, path)}"
    return _of_another(place)


def _of_another(place: Place) -> str:
    """``sde.alphas.to(t.device)[i]``, of an object that its class fills, somewhere in the file."""
    for node in (n for n in heads(place.statement) if isinstance(n, ast.Attribute)):
        held, owner = place.attributes.get(node.attr), path_of(node.value)
        if not owner or owner == "self" or not isinstance(held, torch.Tensor) or held.device.type != "cpu":
            continue
        every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Assign)]
        made = [n for n in every if f"self.{node.attr}" in map(path_of, n.targets) and len(n.targets) == 1]
        if len(made) == 1 and held.numel() > 1:
            there = made_on_device(place, f"self.{node.attr}", made[0], False)
            return (
                f"`{place.text(node)}` is copied from the CPU at each step: make it on the device once, at line "
                f"{made[0].lineno} {there}; this line stays as it is, and copies nothing then"
            )
    return ""


def made_on_device(place: Place, path: str, made: ast.Assign, module: bool) -> str:
    """What to write where a table is made, so that it lies on the device."""
    text, name = place.text(made.value), path.rpartition(".")[2]
    if module:
        if isinstance(place.attributes.get(name), np.ndarray):  # a buffer is a tensor
            text = f"torch.as_tensor({text}{_kind_of(place, path)})"
        return f'`self.register_buffer("{name}", {text})`, which the model\'s `.to({place.device})` takes along'
    return f"`{path} = {on_device(made.value, text, place.device)}`"


def _taken(place: Place, path: str) -> ast.Call | None:
    """``torch.tensor(self.table, dtype=...)``, which makes a tensor of an array in a statement."""
    made = place.calls("tensor", "as_tensor", "from_numpy")
    return next(
        (call for call in made if call.args and path_of(call.args[0]) == path == place.text(call.args[0])), None
    )


def _kind_of(place: Place, path: str) -> str:
    """The ``dtype`` that a statement wants of an array."""
    call = _taken(place, path)
    given = [option for option in call.keywords if option.arg == "dtype"] if call is not None else []
    return f", {place.text(given[0])}" if given else ""


def _read_there(place: Place, path: str) -> str:
    """What a statement says where an array is a tensor."""
    call = _taken(place, path)
    if call is None:
        return ""
    return f"; here `{place.text(place.statement).replace(place.text(call), path)}`"


def tables(place: Place) -> Iterator[tuple[str, ast.Assign, bool]]:
    """Paths of a statement that one line of the file makes on the CPU, and whether an nn.Module has them."""
    above: ast.AST | None = place.statement
    while above is not None and not isinstance(above, ast.ClassDef):
        above = place.source.parents.get(above)
    picked = [one.value for _, one in assignments(place) if isinstance(one.value, ast.Subscript)]
    for node in [*heads(place.statement), *(each.value for each in picked)]:
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        path = path_of(node)
        inside: ast.AST | None = above if path.startswith("self.") else place.source.tree
        if inside is None or not path or (path.partition(".")[0] != "self" and place.local(node)):
            continue
        known = place.space.get(path) if "." not in path else None
        if "." not in path and not isinstance(known, torch.Tensor):
            continue
        made = [n for n in ast.walk(inside) if isinstance(n, ast.Assign) and path in map(target_of, n.targets)]
        held = known if "." not in path else place.attributes.get(path.rpartition(".")[2])
        if _is_picked_of_an_array(place, node) or (isinstance(held, torch.Tensor) and held.device.type != "cpu"):
            continue
        if len(made) == 1 and made[0] is not place.statement and is_on_cpu(made[0].value):
            bases = [place.text(base) for base in above.bases] if isinstance(above, ast.ClassDef) else []
            yield path, made[0], path.startswith("self.") and any("Module" in base for base in bases)


def _is_picked_of_an_array(place: Place, node: ast.expr) -> bool:
    """``torch.tensor(self.rows[picks])`` of an array: what the host picks is another part each time."""
    above = place.source.parents.get(node)
    array = isinstance(place.attributes.get(path_of(node).rpartition(".")[2]), np.ndarray)
    return array and isinstance(above, ast.Subscript) and above.value is node


def target_of(node: ast.expr) -> str:
    """The path that an assignment gives a value, or ""."""
    return path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def is_on_cpu(value: ast.expr) -> bool:
    """Whether an expression makes a tensor, and names no device."""
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
    there = any(option.arg == "device" for call in calls for option in call.keywords)
    there = there or any(called(n) in _MOVED for n in calls)
    return (
        not there and any(called(n) in _ON_CPU for n in calls) and not any(called(n) in ("to", "cuda") for n in calls)
    )


def on_device(value: ast.expr, text: str, device: str) -> str:
    """An expression that makes a tensor, so that it makes it on the device."""
    if (
        isinstance(value, ast.Call)
        and called(value) in (*FACTORIES, "tensor")
        and path_of(value.func).startswith("torch.")
    ):
        return f"{text[:-1]}, device={device})"
    if isinstance(value, ast.Call) and path_of(value.func).partition(".")[0] in ("np", "numpy"):
        return f"torch.as_tensor({text}, device={device})"  # an array has no such method
    return f"{text if isinstance(value, (ast.Call, ast.Name)) else f'({text})'}.to({device})"


def there_is(place: Place, table: str) -> str:
    """Where a table of the CPU is to be made on the device, if one line makes it."""
    for path, made, module in tables(place):
        if path == table:
            return f": at line {made.lineno} {made_on_device(place, path, made, module)}"
    for name, made in assignments(place):
        if name == table and is_on_cpu(made.value):
            return f": at line {made.lineno} {made_on_device(place, name, made, False)}"
    return ""


def is_of_the_host(place: Place, table: str) -> bool:
    """Whether no index of the device picks of a table: of a list, or of modules."""
    held = place.attributes.get(table.rpartition(".")[2]) if "." in table else place.value(table)
    return isinstance(held, (torch.nn.Module, list, tuple, dict))


def named(place: Place, name: str) -> Iterator[ast.Assign]:
    """Where a function gives a name its values, up to a statement."""
    function = place.source.function_of(place.statement)
    for node in (n for part in (function.body if function is not None else ()) for n in within(part)):
        if not isinstance(node, ast.Assign) or node.lineno >= place.statement.lineno:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
            yield node
