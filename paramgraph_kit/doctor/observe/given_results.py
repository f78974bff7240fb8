"""Results in objects that a list keeps, of the user's or futures: told at the line that gives them to an object."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_SAID = "a list keeps what has it as it is, and each further replay writes to the same memory"
_PLAIN = (torch.Tensor, list, tuple, dict, set, str, int, float)
_MOST = 64  # entries that are looked at


def of_object(code: CodeType, held: Any, tensors: Callable[[Any], list[torch.Tensor]]) -> Failure | None:
    """What is told where a list's entries are objects, and one line gives each its result; None elsewhere.

    Args:
        code: a function of the file.
        held: the list.
        tensors: what an entry has.
    """
    entries = [*islice(held, _MOST)] if type(held) in (list, deque) else []  # one of the user's goes its own way
    entries = [each for each in entries if tensors(each)]
    if not entries or any(is_a(each, _PLAIN) for each in entries):
        return None
    names = {n for each in entries for n, v in attributes_of(each).items() if is_a(v, torch.Tensor)}
    names = {each for each in names if _is_shared(entries, each)} if len(names) > 1 else names  # and no input of each
    kinds = {type(each).__name__ for each in entries}
    tree = tree_of(code.co_filename)
    if len(names) != 1 or len(kinds) != 1 or tree is None:
        return None
    name, kind = names.pop(), kinds.pop()
    inside = [n for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name == kind for n in each.body]
    given = [*_given(ast.Module(inside, []), name)]
    # Else somebody else's line gives it: what is written to `self` is another class's own.
    given = given or [each for each in _given(tree, name) if ast.unparse(each[0].targets[0].value) != "self"]
    if len(given) != 1:
        return None
    node, value = given[0]
    line, text = ast.unparse(node), ast.unparse(value)
    at = line.rfind(text)
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(_of(code, tree, node), node.lineno))
    return replace(failure, fix=f"before  {line}\nafter   {line[:at]}{text}.clone(){line[at + len(text) :]}")


def _is_shared(entries: Collection[Any], name: str) -> bool:
    """Whether several entries have the same memory there."""
    held = [v for each in entries if is_a(v := attributes_of(each).get(name), torch.Tensor)]
    return len({storage_key(each) for each in held}) < len(held)


def of_future(code: CodeType, held: Any) -> Failure | None:
    """The same of futures, which cannot be copied themselves: one line of the file gives them what they hold."""
    entries = [*islice(held, _MOST)] if type(held) in (list, deque) else []
    tree = tree_of(code.co_filename)
    if not entries or tree is None or not all(isinstance(each, Future) for each in entries):
        return None
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == "set_result" and n.args)
    given = [n for n in calls if not isinstance(n.args[0], ast.Constant)]
    if len(given) != 1:
        return None
    line, text = ast.unparse(given[0]), ast.unparse(given[0].args[0])
    failure = BY_ID["output-alias"].failure(_SAID, frame_at(_of(code, tree, given[0]), given[0].lineno))
    return replace(failure, fix=f"before  {line}\nafter   {line.removesuffix(text + ')')}{text}.clone())")


def of_empty(code: CodeType, held: Any, made: ast.expr, tensors: Callable[[Any], list[torch.Tensor]]) -> list[Failure]:
    """What is told where a line makes empty entries, ``[{} for _ in xs]``, and others of the file fill them."""
    tree = tree_of(code.co_filename)
    if ast.unparse(made) not in ("{}", "dict()") or tree is None or type(held) not in (list, deque, dict):
        return []
    entries = [*islice(held.values() if type(held) is dict else held, _MOST)]
    keys = {key for each in entries if type(each) is dict for key, value in each.items() if tensors(value)}
    found = []
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign) and _fills(node.targets[0], keys) else None
        if value is not None and isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
            line, text = ast.unparse(node), ast.unparse(value)
            at = line.rfind(text)
            failure = BY_ID["output-alias"].failure(_SAID, frame_at(_of(code, tree, node), node.lineno))  # type: ignore[attr-defined]
            found.append(replace(failure, fix=f"before  {line}\nafter   {line[:at]}{text}.clone()"))
    return found


def _fills(target: ast.expr, keys: Collection[Any]) -> bool:
    is_entry = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
    return is_entry and target.slice.value in keys  # type: ignore[attr-defined]


def _of(code: CodeType, tree: ast.AST, node: ast.AST) -> CodeType:
    return code.replace(co_name=_around(tree, node))


def _given(tree: ast.AST, name: str) -> Any:
    """Lines that give an attribute of this name a value which is no constant."""
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign) and len(n.targets) == 1):
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and last_name(target) == name and not isinstance(node.value, ast.Constant):
            yield node, node.value


def _around(tree: ast.AST, node: ast.AST) -> str:
    """The function that a line stands in."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and any(e is node for e in ast.walk(n))]
    return functions[-1].name if functions else "<module>"


def comprehended(line: ast.AST, function: Any) -> list[ast.ListComp | ast.SetComp | ast.GeneratorExp]:
    """Comprehensions of a line, but for what it gives to a function: ``kept.append(step([x[:n] for x in xs]))``."""
    name = getattr(function, "__name__", None)
    calls = [n for n in ast.walk(line) if isinstance(n, ast.Call) and last_name(n.func) == name]
    given = {n for call in calls for each in (*call.args, *(k.value for k in call.keywords)) for n in ast.walk(each)}
    found = [n for n in ast.walk(line) if isinstance(n, (ast.ListComp, ast.SetComp, ast.GeneratorExp))]
    return [n for n in found if n not in given]


def may_call(call: ast.Call, function: Any) -> bool:
    """Whether a call may be one of a function; of an object that is called any may be."""
    return getattr(function, "__name__", last_name(call.func)) == last_name(call.func)
