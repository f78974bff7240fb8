"""Arguments of calls that a capture makes, which nobody may read there; parts of modules as one writes them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from inspect import unwrap
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_entries import LENGTH, how_read
from paramgraph_kit.doctor.observe.captured_values import LEARNS, Names, Use, names_in
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.driver.files import is_library

_MOST_DEEP = 4  # calls that hand an argument on
_BY_NAME = frozenset(("locals", "vars", "eval", "exec"))  # what may read a variable without writing its name
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def is_unread(use: Use, part: str = "") -> bool:
    """Whether what a capture reads is only handed to a function of the user's that never reads that argument.

    ``part``: or that of it, as the number of a list's entries.
    """
    tree = tree_of(use.code.co_filename)
    held = use.value() if part == LENGTH else None
    return tree is not None and _is_handed_in_vain(use.node, tree, use, held, _MOST_DEEP)


def forget_unread(regions: Iterable[Region], *numbers: dict[Any, Any]) -> set[str]:
    """Drop, by function and name, arguments that captures only hand on to who never reads them; gives their names."""
    found = set[str]()
    for region in regions:
        code, known = region.code, region.known
        given = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
        reads = dict[str, list[ast.Name]]()
        for node in (n for s in region.body for n in ast.walk(s)):
            if isinstance(node, ast.Name) and node.id in given and isinstance(node.ctx, ast.Load):
                reads.setdefault(node.id, []).append(node)
        names = Names(region.space, region.cells, region.own | known.keys(), known)
        vain = {n for n, nodes in reads.items() if all(is_unread(Use(code, each, False, names)) for each in nodes)}
        for moved in numbers:
            for key in [k for k in moved if k[0] is code and k[1] in vain]:
                del moved[key]
        found |= vain
    return found


def part_of(path: str, part: str, owner: Any) -> str:
    """A part of a module as one writes it: ``model[1].training`` for ``1.training`` of ``model``."""
    *owners, last = part.lstrip(".").split(".")
    text = path
    for name in owners:
        if is_a(owner, torch.nn.ModuleDict):
            text += f"[{name!r}]"
        elif isinstance(owner, (torch.nn.Sequential, torch.nn.ModuleList)) and name.isdecimal():
            text += f"[{name}]"
        else:
            text += f".{name}" if name.isidentifier() else f".get_submodule({name!r})"
        owner = vars(owner).get("_modules", {}).get(name) if is_a(owner, torch.nn.Module) else None
    return f"{text}.{last}"


def as_key(path: str, part: str, owner: Any) -> str:
    """What tells graphs apart by a part of a module: of which parameters learn by all, as others may be next."""
    if part.endswith(LEARNS) and is_a(owner, torch.nn.Module) and len([*owner.parameters()]) > 1:
        return f"tuple(p.requires_grad for p in {path}.parameters())"
    return part_of(path, part, owner) if part else path


def _is_handed_in_vain(node: ast.expr, tree: ast.AST, use: Use, held: Any, deep: int) -> bool:
    call = next((n for n in ast.walk(tree) if isinstance(n, ast.Call) and _hands(n, node)), None)
    if call is None or not deep or any(isinstance(each, ast.Starred) for each in call.args):
        return False
    called = _function_of(Use(use.code, call.func, False, use.names).value())
    if called is None:
        return False
    function, owner = called
    code = function.__code__
    name = _name_of(code, call, node, owner is not None)
    if not name or not _BY_NAME.isdisjoint(code.co_names):
        return False
    nodes = [*nodes_of(code)]
    if not nodes:
        return False
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    if held is not None:
        reads = [n for n in reads if how_read(code, n, held) in ("whole", "truth")]
    inside = ast.Module([n for n in nodes if isinstance(n, ast.stmt)], [])
    names = names_in(function, owner)
    return all(_is_handed_in_vain(n, inside, Use(code, n, False, names), held, deep - 1) for n in reads)


def _hands(call: ast.Call, node: ast.expr) -> bool:
    return any(each is node for each in (*call.args, *(k.value for k in call.keywords if k.arg)))


def _name_of(code: CodeType, call: ast.Call, node: ast.expr, is_method: bool) -> str:
    """The variable of a function that an argument of a call goes to; "" for one of ``*args`` or ``**kwargs``."""
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for keyword in call.keywords:
        if keyword.value is node:
            return keyword.arg if keyword.arg in own else ""
    at = next(i for i, each in enumerate(call.args) if each is node) + is_method
    return own[at] if at < code.co_argcount else ""


def _function_of(value: Any) -> tuple[FunctionType, Any] | None:
    """The function of the user's that a call of something runs, and its object; None where others may see arguments."""
    owner = None
    if is_a(value, torch.nn.Module):
        if any(vars(value).get(hooks) for hooks in _HOOKS):
            return None
        value = MethodType(type(value).forward, value)
    if isinstance(value, MethodType):
        owner, value = value.__self__, value.__func__
    if not isinstance(value, FunctionType):
        return None
    function = unwrap(value)
    wrapped = function is not value and not is_library(value.__code__.co_filename)
    if wrapped or not isinstance(function, FunctionType) or is_library(function.__code__.co_filename):
        return None
    return function, owner
