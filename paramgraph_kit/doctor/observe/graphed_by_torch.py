"""What ``make_graphed_callables`` has captured: found again in what it returns, or has changed in place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import tree_of
from paramgraph_kit.doctor.observe.held import attributes_of, cells_of, is_a

_MOST = 100  # entries of what may hold modules


@dataclass(frozen=True, slots=True)
class Graphed:
    """One callable: what it was before, if that is known, what its graph reads as arguments, and its graphs."""

    original: Any
    args: tuple[Any, ...]
    graphs: tuple[Any, ...]  # forward, and backward


def is_of_graphs(file: str) -> bool:
    """Whether a file is that of torch's own captures and graphed callables."""
    return file.replace("\\", "/").endswith("/torch/cuda/graphs.py")


def graphed_by_torch(value: Any) -> Graphed | None:
    """The graphs of a callable; None where torch has made none for it."""
    patched = attributes_of(value).get("forward") if is_a(value, torch.nn.Module) else None
    around = _closure(patched, "new_fwd")
    inner = _closure(around.get("graphed", value), "functionalized")
    kind = inner.get("Graphed")
    forward, backward = (_closure(getattr(kind, name, None), name) for name in ("forward", "backward"))
    if "fwd_graph" not in forward:
        return None
    inputs = forward.get("static_input_surface", ())[: forward.get("len_user_args", 0)]
    args = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in inputs)
    return Graphed(around.get("orig_fwd"), args, (forward["fwd_graph"], backward.get("bwd_graph")))


def graphed_modules(values: Iterable[Any], deep: int = 3) -> Iterator[Graphed]:
    """What torch has graphed in place of modules, of their parts, and of lists, tuples and dictionaries of such."""
    for value in values:
        if is_a(value, torch.nn.Module):
            found = (graphed_by_torch(each) for each in value.modules())
            yield from (each for each in found if each is not None and each.original is not None)
        elif deep and is_a(value, (list, tuple, dict)):
            yield from graphed_modules([*(value.values() if is_a(value, dict) else value)][:_MOST], deep - 1)


def minds_its_mode(module: Any, graphs: Iterable[object]) -> bool:
    """Whether these are graphs of a module, or of a part of it, that torch leaves out in the other mode by itself."""
    known = set(map(id, graphs))
    return any(known & set(map(id, each.graphs)) for each in graphed_modules([module]))


def graphed_in_training(module: torch.nn.Module) -> bool:
    """Whether a module was in its training mode when torch graphed it in place."""
    around = _closure(attributes_of(module).get("forward"), "new_fwd")
    return around.get("graph_training_state") is True


def original_of(value: Any) -> Any:
    """A module's ``forward`` as it was; anything else as it is."""
    found = graphed_by_torch(value) if is_a(value, torch.nn.Module) else None
    return value if found is None or found.original is None else found.original


def defined_in(file: str, name: str, space: dict[str, Any]) -> Any:
    """A function at the top of a file, whose name may mean another one by now; None where there is none."""
    found: dict[str, Any] = {}
    for node in getattr(tree_of(file), "body", []):
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            exec(compile(ast.Module([node], []), file, "exec"), {**space}, found)
    made = found.get(name)
    return FunctionType(made.__code__, space, name, made.__defaults__) if is_a(made, FunctionType) else None


def _closure(function: Any, name: str) -> dict[str, Any]:
    """The variables around a function of torch's."""
    plain = unwrap(function) if is_a(function, FunctionType) else None
    code = getattr(plain, "__code__", None)
    if code is None or code.co_name != name or not is_of_graphs(code.co_filename):
        return {}
    return {each: cell.cell_contents for each, cell in cells_of(plain).items()}
