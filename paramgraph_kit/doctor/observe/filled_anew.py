"""A tensor of a capture's function alone that each call makes anew: if it is only kept, it is that of the capture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, defines, here, last_name, tree_of
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_regions import Region

_KINDS = ("shape", "dtype", "device", "size", "dim", "ndim", "numel", "stride", "layout", "is_cuda", "requires_grad")
_LIKE = re.compile(r"len|isinstance|\w+_like|new_\w+")
_AHEAD = "; and in each call, ahead of its replay, "
_WHY = ": the graph reads the tensor of its capture, and none that gets that name later"


def with_new_values(kept: str, names: list[str], region: Region) -> str:
    """What keeps these tensors with a graph, and what copies to them where each call makes them anew."""
    graph = kept.rpartition("behind it: ")[2].partition(".reads = ")[0]
    lines = {at: lines for at, name in enumerate(names) if (lines := [*_made_by(name, region)])}
    if not graph or not lines:
        return kept
    before = dict.fromkeys(line for each in lines.values() for line in each)
    copies = [f"{graph}.reads[{at}].copy_({names[at]})" for at in lines]
    return f"{kept}{_AHEAD}`{'; '.join([*before, *copies])}`{_WHY}"


def copied_ahead(fix: str) -> str:
    """The lines of such a fix that come ahead of each replay; "" of another one."""
    _, found, after = fix.partition(f"{_AHEAD}`")
    return after.partition("`")[0] if found else ""


def _made_by(name: str, region: Region) -> Iterator[str]:
    """The lines that make it, if what they make is another one in each call."""
    tree = tree_of(region.code.co_filename)
    functions = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])] if tree is not None else []
    function = next((each for each in functions if defines(each, region.code)), None)
    body = function.body if function is not None else tree.body if tree is not None else []
    inside = [n for statement in body for n in here(statement)] if tree is not None else []
    made = [n for n in inside if _gives(n, name)]
    ahead = [n for n in made if n.lineno < region.line]
    if len(ahead) != 1 or tree is None:
        return
    if (again := _made_again(name, region, tree, functions)) is not None:
        yield ast.unparse(again)
    elif isinstance(function, FUNCTIONS[:2]) and function.name != "__init__":
        yield from _of_arguments(ahead[0], function, inside, region)


def _made_again(
    name: str, region: Region, tree: ast.Module, functions: list[ast.FunctionDef | ast.AsyncFunctionDef]
) -> ast.Assign | None:
    """The assignment to that name ahead of a replay: behind the capture, or in another function."""
    for body in (tree.body, *(each.body for each in functions)):
        nodes = [n for statement in body for n in here(statement, (*FUNCTIONS, ast.ClassDef))]
        last = max((n.lineno for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "replay"), default=0)
        first = region.line if any(n.lineno == region.line for n in nodes if isinstance(n, ast.With)) else 0
        given = [n for n in nodes if _gives(n, name) and first < n.lineno < last]
        if given:
            return given[-1]
    return None


def _of_arguments(
    node: ast.Assign, function: ast.FunctionDef | ast.AsyncFunctionDef, inside: list[ast.AST], region: Region
) -> list[str]:
    """The assignments that make it of tensors that the function is given, in their order."""
    given = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    tensors = {name for name in given if name in region.called.values() or name in region.gone}
    tensors |= {name for name in given if is_a(region.names.get(name), torch.Tensor)}
    chain, todo, depends = {node.lineno: node}, [node], False
    while todo:
        each = todo.pop()
        for name in names_read(each.value):
            made = [n for n in inside if _gives(n, name) and n.lineno < each.lineno]
            depends |= not made and name in tensors
            for other in made[-1:]:
                if other.lineno not in chain:
                    chain[other.lineno] = other
                    todo.append(other)
    return [ast.unparse(chain[line]) for line in sorted(chain)] if depends else []


def _gives(node: ast.AST, name: str) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def names_read(node: ast.AST) -> Iterator[str]:
    """The variables of which an expression, or a statement, reads more than how they lie."""
    if isinstance(node, ast.Attribute) and node.attr in _KINDS:
        return
    if isinstance(node, ast.Call) and _LIKE.fullmatch(last_name(node.func)):
        return
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from names_read(child)
