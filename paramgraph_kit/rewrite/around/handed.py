"""What lines behind the launch need and no tensor holds: lists of numbers of the device, and what the host drew.

``losses.append(loss.item())`` in a loop whose list is only read behind it keeps tensors, and the list is handed over in
one; a number that the host finds before the launch, and that is read behind it as well, is a variable around both.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import clocks, feeding
from paramgraph_kit.rewrite.counting.advance import is_one_number
from paramgraph_kit.rewrite.source import hosts, moving
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, heads, locals_of, names_in
from paramgraph_kit.rewrite.source.place import Form, called, fresh, target_of


@dataclass(slots=True)
class Listed:
    """A list of a function's own that is filled with numbers of the device, and read by what may run behind it."""

    name: str
    filling: list[ast.stmt]
    edits: list[Edit]
    readers: list[ast.stmt]


def lists(source: Source, function: Function, forms: Mapping[str, Form]) -> list[Listed]:
    """The lists of a function that can be handed over as one tensor."""
    every = [n for part in function.body for n in ast.walk(part)]
    found = []
    for made in moving.body_of(function):
        target = target_of(made)
        if not isinstance(made, ast.Assign) or not isinstance(target, ast.Name) or not _is_empty(made.value):
            continue
        uses = [n for n in every if isinstance(n, ast.Name) and n.id == target.id and n is not target]
        listed = Listed(target.id, [], [], [])
        for use in uses:
            if not _fills(source, use, listed, forms):
                top = moving.top_of(source, function, source.statement_of(use))
                listed.readers += [top] if top is not None and top not in listed.readers else []
        first = min((node.lineno for node in listed.readers), default=0)
        behind = all((node.end_lineno or 0) < first for node in listed.filling)
        if listed.filling and listed.readers and behind and all(map(moving.is_movable, listed.readers)):
            found.append(listed)
    return found


def _is_empty(value: ast.expr) -> bool:
    return isinstance(value, ast.List) and not value.elts


def _fills(source: Source, use: ast.Name, listed: Listed, forms: Mapping[str, Form]) -> bool:
    """Whether a list is read where a number of the device is appended to it; notes how that is written then."""
    statement = source.statement_of(use)
    value = _added(source, use, statement)
    if not isinstance(value, ast.Call):
        return False
    inner: ast.expr | None = None
    if isinstance(value.func, ast.Attribute) and value.func.attr == "item" and not value.args:
        inner = value.func.value
    elif isinstance(value.func, ast.Name) and value.func.id == "float" and len(value.args) == 1:
        inner = value.args[0]
    if inner is None:
        return False
    text = ".detach()" if is_one_number(inner, forms) else ".detach().squeeze()"
    listed.filling.append(statement)
    listed.edits.append(source.replace(value, source.bracketed(inner) + text))
    return True


def _added(source: Source, use: ast.Name, statement: ast.stmt) -> ast.expr | None:
    """What ``losses.append(x)`` and ``losses += [x]`` add to a list."""
    if isinstance(statement, ast.AugAssign) and statement.target is use and isinstance(statement.op, ast.Add):
        elements = statement.value.elts if isinstance(statement.value, ast.List) else []
        return elements[0] if len(elements) == 1 else None
    call = source.parents.get(source.parents.get(use, use))
    if not isinstance(call, ast.Call) or called(call) != "append" or not isinstance(statement, ast.Expr):
        return None
    return call.args[0] if len(call.args) == 1 and statement.value is call else None


def shared(
    source: Source,
    function: Function,
    behind: Sequence[ast.stmt],
    held: Collection[str],
    is_host: Callable[[ast.expr], bool],
) -> list[ast.stmt]:
    """Statements of the host alone, which give what some lines behind the launch read its value before it."""
    order, arguments = list(moving.body_of(function)), set(moving.arguments_of(function))
    wanted = {name for node in behind for name in names_in(node)} & locals_of(function) - arguments - set(held)
    wanted -= moving.stored(behind)
    found: list[ast.stmt] = []
    for name in sorted(wanted):
        stored = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
        giving = [n for n in order if isinstance(n, ast.Assign) and name in moving.stored([n])]
        once = sum(isinstance(n.ctx, ast.Store) for n in stored) == 1
        if len(giving) != 1 or not once or not is_host(giving[0].value):
            continue
        kept = feeding.slice_before(source, function, giving[0], giving[0].value)
        if kept is None or not all(hosts.is_of_host(each, is_host, arguments) for each in [*kept, giving[0]]):
            continue
        if any(clocks.asks_a_clock(source, each) for each in [*kept, giving[0]]):
            continue  # the time of a part
        found += [each for each in [*kept, giving[0]] if each not in found]
    return [node for node in order if node in found]


def reads(source: Source, chosen: Sequence[ast.stmt], is_host: Callable[[ast.expr], bool]) -> dict[str, ast.expr]:
    """What ``total += (net(x).argmax(-1) == y).sum().item()`` reads, by the names under which it is handed over.

    It is computed where the function returns, so only where all of it is such a statement, and makes none of it.
    """
    found: dict[str, ast.expr] = {}
    made, taken = moving.stored(chosen), names_in(source.tree)
    for node in chosen:
        if not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)):
            return {}
        for call in (part for part in heads(node) if isinstance(part, ast.Call)):
            value = _read_of(call)
            if value is None or is_host(value) or names_in(value) & made or not _computes(value):
                continue
            found[fresh("value", {*taken, *found})] = value
    return found


def named(
    source: Source, given: Mapping[str, ast.expr], more: Callable[[ast.stmt], list[Edit]]
) -> Callable[[ast.stmt], list[Edit]]:
    """Edits of a moved statement, with the names of what it is handed over."""

    def edits(statement: ast.stmt) -> list[Edit]:
        inside = {*ast.walk(statement)}
        return [*more(statement), *(source.replace(node, name) for name, node in given.items() if node in inside)]

    return edits


def holds_tensors(value: Any) -> bool:
    """Whether some of a list, a tuple or a dictionary are tensors of the device."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(each, torch.Tensor) and each.device.type == device().type for each in held)


def holds_only_tensors(value: Any) -> bool:
    """Whether all of a plain list, tuple or dictionary are tensors, and some are the device's."""
    held = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return holds_tensors(value) and all(isinstance(each, torch.Tensor) for each in held)


def many(kinds: Mapping[str, type], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """How lists, tuples and dictionaries of tensors are handed over, and what copies them: the next launch writes them.

    What is behind it may keep them, or add to them.
    """
    texts, lines = dict[str, str](), list[str]()
    for name in sorted({*names} & kinds.keys()):
        if kinds[name] is dict:
            texts[name] = f"{{key: each.detach() for key, each in {name}.items()}}"
            lines.append(f"{name} = {{key: each.clone() for key, each in {name}.items()}}")
            continue
        texts[name] = f"[each.detach() for each in {name}]"
        copies = f"each.clone() for each in {name}"
        lines.append(f"{name} = [{copies}]" if kinds[name] is list else f"{name} = tuple({copies})")
    return texts, lines


def _computes(node: ast.expr) -> bool:
    return any(isinstance(part, (ast.Call, ast.BinOp)) for part in ast.walk(node))


def _read_of(call: ast.Call) -> ast.expr | None:
    """The tensor of which a call makes numbers of the host's."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("item", "tolist") and not call.args:
        return call.func.value
    plain = isinstance(call.func, ast.Name) and call.func.id in ("float", "int", "bool") and len(call.args) == 1
    return call.args[0] if plain and isinstance(call.args[0], (ast.Call, ast.BinOp)) else None
