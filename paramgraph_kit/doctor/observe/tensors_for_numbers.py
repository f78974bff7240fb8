"""What else is written in a function that is given a number where a tensor of it is given."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType, MethodType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.held import code_of, is_a
from paramgraph_kit.doctor.observe.multiplied import OF_TENSORS, Parents, multiplied
from paramgraph_kit.doctor.observe.tensor_names import TensorNames, tensor_names

HOSTS = ("math", "np", "numpy", "random", "cmath")
JOINS = ("cat", "concat", "stack", "hstack", "vstack")
_DEEP = 3
_NOBODY: Mapping[str, Any] = MappingProxyType({})


def with_tensor(
    nodes: Collection[ast.AST],
    name: str,
    own: Mapping[str, Any] = _NOBODY,
    given: Collection[str] = (),
    deep: int = _DEEP,
) -> list[str] | None:
    """The lines of a function that read a number, with a tensor for it; None where some take none.

    ``own`` is the object whose method it is, by its name there; ``given`` are the names that are given tensors.
    """
    sure = tensor_names(nodes, own, given)
    names = sorted((n for n in nodes if isinstance(n, ast.Name)), key=lambda n: (n.lineno, n.col_offset))
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    waiting, said = [name], dict[str, None]()
    methods = [n for n in nodes if isinstance(n, ast.Attribute) and hasattr(torch.Tensor, n.attr)]
    tensors = {last_name(n.value) for n in methods if not hasattr(float, n.attr)}
    for each in waiting:  # it grows by the names of what is computed of it
        if each in tensors and each != name:
            continue  # one already
        for read in (n for n in names if n.id == each and isinstance(n.ctx, ast.Load)):
            for step in _upwards(read, parents, sure, deep):
                if step is None:
                    return None
                is_new = isinstance(step, ast.Name) and step.id not in waiting
                waiting += [step.id] if is_new else []  # type: ignore[union-attr]
                said |= {step: None} if isinstance(step, str) else {}
    return [*said]


def _upwards(node: Any, parents: Parents, sure: TensorNames, deep: int) -> Iterator[str | ast.Name | None]:
    """What takes a number, and what of that: what is written instead, a name that is given it, None if none can."""
    computed = False
    while True:
        above: Any = parents.get(node)
        if isinstance(above, (ast.BinOp, ast.UnaryOp)):
            beside = [getattr(above, side, None) for side in ("left", "right")]
            if any(sure.has(each) for each in beside):
                return  # self.x + t * v: one already
            node, computed = above, True
            continue
        if isinstance(above, ast.List) and computed and last_name(getattr(parents.get(above), "func", above)) in JOINS:
            return  # of tensors
        if isinstance(above, ast.Tuple) and isinstance(into := parents.get(above), ast.Assign):
            target, at = into.targets[0], above.elts.index(node)
            each = target.elts[at] if isinstance(target, ast.Tuple) else None
            yield each if isinstance(each, ast.Name) else None
        elif isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
            yield above.targets[0]
        elif isinstance(above, ast.Call) and node in above.args:
            name, owner = last_name(above.func), last_name(getattr(above.func, "value", ast.Pass()))
            if owner in HOSTS and hasattr(torch, name):
                yield f"`torch.{name}` for `{owner}.{name}`"
                node = above
                continue
            if (owner, name) == ("torch", "full") and node is above.args[1]:
                size = ast.unparse(above.args[0])
                yield f"`torch.as_tensor({ast.unparse(node)}).expand({size})` for `{ast.unparse(above)}`"
            elif owner != "torch" and name in ("add", "add_", "sub", "sub_"):
                pass  # of a tensor's own
            elif name not in OF_TENSORS and not (computed and owner == "torch" and name in ("exp", "sqrt", "log")):
                yield from _in_called(above, node, sure, deep)
        elif isinstance(above, ast.keyword):
            said = multiplied(node, parents)
            yield from [said] if said is not None else _in_called(parents.get(above), node, sure, deep)
        elif isinstance(above, ast.Attribute) and hasattr(torch.Tensor, above.attr) and not hasattr(float, above.attr):
            pass  # (x + t).clamp(0): one already
        elif not (computed and isinstance(above, (ast.Return, ast.AugAssign, ast.Call))):
            yield None
        return


def _in_called(call: Any, node: Any, sure: TensorNames, deep: int) -> Iterator[str | None]:
    """What else is written in a method of the object's that the number is handed on to; None where that is no such."""
    called = sure.called(call) if isinstance(call, ast.Call) else None
    code = code_of(called)
    if code is None or not is_a(called, MethodType) or deep == 0 or any(isinstance(a, ast.Starred) for a in call.args):
        yield None
        return
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    placed = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    name = next((name for name, each in placed if each is node and name in names), None)
    own, given = sure.handed(call, called, code)
    said = with_tensor([*nodes_of(code)], name, own, given, deep - 1) if name is not None else None
    yield from [None] if said is None else said
