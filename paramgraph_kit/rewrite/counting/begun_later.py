"""Gradients that a branch of the host's lets come later, as those of a head that counts from the second epoch on.

SGD's fused kernels take no momentum that begins later than the others': with one of zeros, made once for all, they do
what eager does. A loss that ``torch.where`` chooses would give such parameters zeros too early, where eager has None.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import is_backward, stored
from paramgraph_kit.rewrite.source.place import called, fresh

_MOMENTUM = 2  # the place of SGD's momentum among its arguments
_LIBRARIES = ("torch", "F", "nn", "functional", "np", "numpy", "math", "random")


def gradients_begin_later(sources: Iterable[Source]) -> bool:
    """Whether a branch of any function that goes back from a loss, or computes a module, brings in more of the net."""
    functions = (n for source in sources for n in ast.walk(source.tree) if isinstance(n, Function))
    return any(brings_more(f, n) for f in functions for n in ast.walk(f) if isinstance(n, ast.If))


def brings_more(function: ast.FunctionDef | ast.AsyncFunctionDef, node: ast.If) -> bool:
    """Whether what a branch adds to a loss comes of modules, or results of them, that nothing else there reads."""
    if _asks_otherwise(node.test):
        return False
    inside = [n for part in (*node.body, *node.orelse) for n in within(part)]
    every = [n for part in function.body for n in within(part)]
    ids = {id(n) for n in inside}
    losses = _goes_into(every) if any(map(is_backward, every)) else _returned(every) if _is_forward(function) else set()
    adds = [n for n in inside if isinstance(n, (ast.Assign, ast.AugAssign)) and stored([n]) & losses]
    if not adds:
        return False
    outside = [n for n in every if id(n) not in ids]
    elsewhere = {path_of(n.func) for n in outside if isinstance(n, ast.Call)}
    calls = [path_of(n.func) for n in inside if isinstance(n, ast.Call)]
    own = [each for each in calls if each and each.split(".")[0] not in _LIBRARIES and each not in elsewhere]
    if any(each.startswith("self.") or "." not in each for each in own if not _is_plain(each)):
        return True
    made = {name for n in outside if isinstance(n, ast.Assign) and _calls_own(n.value) for name in stored([n])}
    read = {n.id for n in outside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return bool({n.id for each in adds for n in ast.walk(each.value) if isinstance(n, ast.Name)} & made - read)


def _asks_otherwise(test: ast.expr) -> bool:
    """Tests of a mode, of None or of a type: those are another function."""
    parts = [*ast.walk(test)]
    none = any(isinstance(n, ast.Constant) and n.value is None for n in parts)
    mode = any(isinstance(n, ast.Attribute) and n.attr == "training" for n in parts)
    return none or mode or any(isinstance(n, ast.Call) and called(n) in ("isinstance", "hasattr") for n in parts)


def _goes_into(every: list[ast.AST]) -> set[str]:
    """The names that a backward pass goes back from, and those that these are made of."""
    found = {name for n in every if is_backward(n) for name in names_in(n)}
    made = [n for n in every if isinstance(n, (ast.Assign, ast.AugAssign))]
    for _ in range(3):
        found |= {name for n in made if stored([n]) & found for name in names_in(n.value)}
    return found


def _returned(every: list[ast.AST]) -> set[str]:
    return {name for n in every if isinstance(n, ast.Return) and n.value is not None for name in names_in(n.value)}


def _is_forward(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name == "forward" and bool(function.args.args) and function.args.args[0].arg == "self"


def _calls_own(value: ast.expr) -> bool:
    calls = [path_of(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)]
    return any(each and each.split(".")[0] not in _LIBRARIES for each in calls)


def _is_plain(path: str) -> bool:
    return path in ("len", "print", "int", "float", "range", "min", "max", "sum", "zip", "enumerate", "abs", "bool")


def momenta(source: Source, call: ast.Call) -> list[Edit]:
    """Lines that begin all momenta of an SGD at once, where it is made, or none where it has no momentum."""
    made: ast.AST | None = call
    while made is not None and not isinstance(made, ast.Assign):
        made = source.parents.get(made)
    given = {each.arg for each in call.keywords}
    if made is None or called(call) != "SGD" or not (given & {"momentum", None} or len(call.args) > _MOMENTUM):
        return []
    pairs = zip(*((n.elts if isinstance(n, ast.Tuple) else [n]) for n in (made.targets[0], made.value)), strict=False)
    target = next((source.text(one) for one, value in pairs if value is call), source.text(made.targets[0]))
    taken = names_in(source.tree)
    group, p = fresh("group", taken), fresh("p", taken)
    lines = [
        f"for {group} in {target}.param_groups:  # fused kernels take no momentum that begins later",
        f'    for {p} in {group}["params"]:',
        f'        {target}.state[{p}]["momentum_buffer"] = torch.zeros_like({p})',
    ]
    return [source.after(made, lines)]


def dampened(known: Iterable[dict[str, Any]]) -> bool:
    """Whether the first step of a momentum is another one than that of a momentum of zeros."""
    groups = [group for each in known for group in each["param_groups"]]
    return any(group.get("momentum") and group.get("dampening") for group in groups)


@contextmanager
def begun(optimizers: Iterable[dict[str, Any]]) -> Iterator[None]:
    """While this lasts each momentum of theirs is there before the step that needs it, as such lines would have it."""
    known = list(optimizers)

    def begin(each: torch.optim.Optimizer, *_: Any) -> None:
        if type(each) is not torch.optim.SGD or not any(vars(each) is one for one in known):
            return
        for group in each.param_groups:
            for p in group["params"] if group["momentum"] and group.get("fused") else ():
                if p.grad is not None and each.state[p].get("momentum_buffer") is None:
                    each.state[p]["momentum_buffer"] = torch.zeros_like(p)

    handle = register_optimizer_step_pre_hook(begin)
    try:
        yield
    finally:
        handle.remove()
