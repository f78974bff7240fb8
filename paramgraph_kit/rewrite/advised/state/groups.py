"""Advice for numbers in an optimizer's groups that a step sets anew, and for calls that only keep what they get."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.advised.state.kept_outside import is_rate
from paramgraph_kit.rewrite.source.edits import Function, locals_of, names_in, on_one_line, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

_AS_NUMBER = ("alpha", "value")
_TRAINS = ("train", "eval", "backward", "step", "zero_grad")


def set_anew(place: Place) -> str:
    """``group["momentum"] = f(it)`` in a step, and ``buf.lerp_(g, 1 - group["momentum"])`` that reads it."""
    if place.failure.code not in ("scalar-frozen", "host-counter"):
        return ""
    for key, made in _set_in_steps(place):
        reads = [n for n in ast.walk(place.statement) if _key_of(n) == key and isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
        if made is place.statement or reads:
            return filled_before(place, made, key)
    return ""


def filled_before(place: Place, made: ast.Assign, key: str) -> str:
    """How an entry of an optimizer of the file's own is a tensor that is written before each launch."""
    target, value, owner = place.text(made.targets[0]), place.text(made.value), _owner(place, made)
    where = "this" if made is place.statement else f"line {made.lineno}, `{place.text(made)}`,"
    return owner and (
        f"{where} belongs before each launch, with what it comes of, as `{target}.fill_({value})`; once, where the "
        f'optimizer has been made, `for group in {owner}.param_groups: group["{key}"] = '
        f'torch.tensor(group["{key}"], device={place.device})`{multiplied(place, key)}'
    )


def multiplied(place: Place, key: str) -> str:
    """What to write where an optimizer of the file's own takes such a number as ``alpha=`` or ``value=``."""
    found = []
    for node in ast.walk(place.source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        for option in node.keywords:
            if option.arg in _AS_NUMBER and any(_key_of(n) == key for n in ast.walk(option.value)):
                first, *rest = map(place.text, node.args)
                given = ", ".join([f"{first} * ({place.text(option.value)})", *rest])
                found.append(f"line {node.lineno}: `{place.text(node.func)}({given})`")
    return "; a tensor is no `alpha=` or `value=`, so " + ", ".join(found) if found else ""


def _set_in_steps(place: Place) -> Iterator[tuple[str, ast.Assign]]:
    """Entries of groups, by their keys, that one statement of the file gives another value."""
    found: dict[str, list[ast.Assign]] = {}
    for node in ast.walk(place.source.tree):
        function = place.source.function_of(node) if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or function is None or function.name == "__init__":
            continue
        key = _key_of(node.targets[0]) if len(node.targets) == 1 else ""
        if key and _owner(place, node):
            found.setdefault(key, []).append(node)
    yield from ((key, nodes[0]) for key, nodes in found.items() if len(nodes) == 1)


def _key_of(node: ast.AST) -> str:
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) else ""


def _owner(place: Place, node: ast.stmt) -> str:
    """``opt`` of ``for group in opt.param_groups`` around a statement, and of ``opt.param_groups[0]["lr"] = ...``."""
    for above in (*place.source.above(node), node):
        every = ast.walk(above.iter) if isinstance(above, ast.For) else ast.walk(above) if above is node else ()
        for part in every:
            if isinstance(part, ast.Attribute) and part.attr == "param_groups":
                return path_of(part.value)
    return ""


def _puts_into_tensors(place: Place, function: Function) -> bool:
    """``self.rows[self.at] = row``, where ``self.rows`` is a tensor."""
    every = (n for part in function.body for n in within(part))
    stores = (n for n in every if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    names = {path_of(n.value).rpartition(".")[2] for n in stores if isinstance(n.value, ast.Attribute)}
    return any(isinstance(place.attributes.get(name), torch.Tensor) for name in names)


def called_for_itself(place: Place) -> str:
    """``stopper(loss, model)`` in a step, where something was found in the object's own lines."""
    function = place.source.function_of(place.statement)
    codes = ("data-dependent-branch", "sync-item", "host-counter", "copy-to-cpu", "print", "size-frozen")
    if place.failure.code not in codes or function is None:
        return ""
    owner = place.source.parents.get(function)
    if not isinstance(owner, ast.ClassDef) or function.name in ("forward", "step", "__init__"):
        return ""
    if any(isinstance(n, ast.Return) and n.value is not None for part in function.body for n in within(part)):
        return ""
    if function.name in _TRAINS or any(called(n) in _TRAINS for n in ast.walk(function) if isinstance(n, ast.Call)):
        return ""  # the graph is to have that
    if any(called(n).endswith("_") and called(n)[:1] != "_" for n in ast.walk(function) if isinstance(n, ast.Call)):
        return ""  # it writes to tensors, of which the next step may read
    calls = [each for each in _calls_of(place, function, owner.name) if place.source.function_of(each) is not function]
    own = [each for each in calls if getattr(place.source.function_of(each), "name", "") == place.entry]
    if len(own or calls) != 1 or (function.name == place.entry and not own):
        return ""  # who knows which of them ran
    node = (own or calls)[0]
    text = f"line {node.lineno}, `{on_one_line(place.text(node))}`, belongs"
    caller = place.source.function_of(node)
    if _puts_into_tensors(place, function):
        given = names_in(node) & locals_of(caller) if caller is not None else set()
        early = caller is not None and given <= set(arguments_of(caller))
        return f"{text} before each launch, as what it writes may be read there: take it out of the step" * early
    if place.failure.code == "size-frozen":
        return ""
    if any(isinstance(n, ast.Assign) and any(map(is_rate, n.targets)) for n in ast.walk(function)):
        return f"{text} before each launch: take it out of the step"
    return f"{text} behind the launch: take it out of the step, and return what it is given"


def _calls_of(place: Place, function: Function, owner: str) -> Iterator[ast.Expr]:
    """Statements that call a method, of objects that may be of its class."""
    kinds = {name: type(value).__name__ for name, value in place.space.items()}
    for node in ast.walk(place.source.tree):
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(node, ast.Expr) or not isinstance(call, ast.Call) or place.source.function_of(node) is None:
            continue
        itself = function.name == "__call__" and kinds.get(path_of(call.func)) == owner
        method = call.func if called(call) == function.name and isinstance(call.func, ast.Attribute) else None
        if itself or (method is not None and kinds.get(path_of(method.value), owner) == owner):
            yield node
