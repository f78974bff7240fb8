"""What one writes for values of the host's that a capture reads: an index, a list of numbers, one of an object's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.held import code_of, is_a

OF_TENSORS = ("mul", "mul_", "div", "div_", "pow", "lerp", "lerp_", "where", "maximum", "minimum")
JOINS = ("cat", "concat", "stack", "hstack", "vstack")
HOSTS = ("math", "np", "numpy", "random", "cmath")


def with_index(uses: Iterable[Use], held: str) -> list[tuple[str, str]] | None:
    """Each expression that reads a number as an index, and the same with the tensor ``held``; None for other reads."""
    found: dict[str, str] = {}
    for use in uses:
        pair = _indexed(use, held)
        if pair is None:
            return None
        found[pair[0]] = pair[1]
    return [*found.items()]


def _indexed(use: Use, held: str) -> tuple[str, str] | None:
    tree = tree_of(use.code.co_filename)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)} if tree else {}
    above: Any = parents.get(use.node)
    picks, node = [use.node], above
    if isinstance(above, ast.Tuple):
        picks, node = above.elts, parents.get(above)
    if not isinstance(node, ast.Subscript) or node.value is use.node:
        return None
    if any(each is not use.node and not _is_all(each) for each in picks):
        return None
    owner, dim = ast.unparse(node.value), next(i for i, each in enumerate(picks) if each is use.node)
    if isinstance(node.ctx, ast.Load):
        return ast.unparse(node), f"{owner}.index_select({dim}, {held}).squeeze({dim})"
    statement = parents.get(node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value = ast.unparse(statement.value)
    if isinstance(statement.value, ast.Constant):
        return ast.unparse(statement), f"{owner}.index_fill_({dim}, {held}, {value})"
    value = value if isinstance(statement.value, (ast.Name, ast.Attribute, ast.Call)) else f"({value})"
    return ast.unparse(statement), f"{owner}.index_copy_({dim}, {held}, {value}.unsqueeze({dim}))"


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is node.upper is node.step is None


def of_entries(path: str, kind: str) -> str:
    """A list, or an array, of numbers."""
    held = held_for(path)
    made = f"before the capture `{held} = torch.tensor({path}, device={kind!r})`"
    read = f"what is captured reads `{held}` for `{path}`, without float()"
    return f"{made}, {read}, and behind this line `{held}.copy_(torch.tensor({path}))`, ahead of g.replay()"


def of_owner(path: str, kind: str) -> str:
    """A number of an object that is exchanged."""
    held = held_for(path)
    made = f"before the capture `{held} = torch.full((), float({path}), device={kind!r})`"
    return f"{made}, what is captured reads `{held}` for `{path}`, and ahead of g.replay() `{held}.fill_({path})`"


def of_none(path: str) -> str:
    """What is there only later."""
    ways = f"a graph for each way, one captured while {path} is None, and one while it is what comes here"
    return f"{ways}; a tensor stays the same then, written by {path}.copy_(...), and the one that fits is replayed"


def held_for(path: str) -> str:
    """``self.cfg_temp_in`` for ``self.cfg.temp``."""
    first, *rest = path.split(".")
    last = re.sub(r"\W+", "_", "_".join(rest)).strip("_")
    return f"{first}.{last}_in" if rest else f"{re.sub(r'[^0-9a-zA-Z_]+', '_', first).strip('_')}_in"


def through(use: Use, uses: Iterable[Use]) -> list[str] | None:
    """What else is written where a number that a function of the user's is given is a tensor; None where it cannot."""
    tree = tree_of(use.code.co_filename)
    call = next((n for n in ast.walk(tree) if isinstance(n, ast.Call) and _takes(n, use.node)), None) if tree else None
    called = next((each.value() for each in uses if call is not None and each.node is call.func), None)
    code = code_of(type(called).forward if is_a(called, torch.nn.Module) else called)
    if call is None or code is None:
        return None
    first = code.co_argcount > 0 and not is_a(called, type(through)) and 1
    names = code.co_varnames[int(first) : code.co_argcount + code.co_kwonlyargcount]
    places = [i for i, each in enumerate(call.args) if each is use.node]
    given = [k.arg for k in call.keywords if k.value is use.node]
    name = names[places[0]] if places and places[0] < len(names) else given[0] if given else None
    return _with_tensor(code, name) if name in names else None


def _takes(call: ast.Call, node: ast.expr) -> bool:
    return any(each is node for each in (*call.args, *(k.value for k in call.keywords)))


def _with_tensor(code: CodeType, name: str) -> list[str] | None:
    """The lines of a function that read a number, with a tensor for it."""
    nodes = [*nodes_of(code)]
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    waiting, said = [name], dict[str, None]()
    for each in waiting:  # it grows by the names of what is computed of it
        for read in (n for n in nodes if isinstance(n, ast.Name) and n.id == each and isinstance(n.ctx, ast.Load)):
            for step in _upwards(read, parents):
                if step is None:
                    return None
                is_new = isinstance(step, ast.Name) and step.id not in waiting
                waiting += [step.id] if is_new else []  # type: ignore[union-attr]
                said |= {step: None} if isinstance(step, str) else {}
    return [*said]


def _upwards(node: Any, parents: dict[ast.AST, ast.AST]) -> Iterator[str | ast.Name | None]:
    """What takes a number, and what of that: what is written instead, a name that is given it, None if none can."""
    computed = False
    while True:
        above: Any = parents.get(node)
        if isinstance(above, (ast.BinOp, ast.UnaryOp)):
            node, computed = above, True
            continue
        if isinstance(above, ast.List) and computed and last_name(getattr(parents.get(above), "func", above)) in JOINS:
            return  # of tensors
        if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
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
            elif name not in OF_TENSORS and not (computed and owner == "torch" and name in ("exp", "sqrt", "log")):
                yield None
        elif not (computed and isinstance(above, (ast.Return, ast.AugAssign, ast.Call))):
            yield None
        return
