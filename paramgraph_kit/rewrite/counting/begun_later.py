"""Gradients that a branch of the host's lets come later, as those of a head that counts from the second epoch on.

SGD's fused kernels take no momentum that begins later than the others': with one of zeros, made once for all, they do
what eager does. A loss that ``torch.where`` chooses would give such parameters zeros too early, where eager has None.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paramgraph_kit.doctor.explain.syntax import every, walk
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, assigned, names_in, path_of
from paramgraph_kit.rewrite.source.more_of_a_net import asks_otherwise, brings_more
from paramgraph_kit.rewrite.source.place import called, fresh

_MOMENTUM = 2  # the place of SGD's momentum among its arguments


def gradients_begin_later(sources: Iterable[Source]) -> bool:
    """Whether a branch of any function brings more of a net into a loss or a module, or lets more of it train."""
    return any(_begin_later_in(source.tree) for source in sources)


@lru_cache(64)  # each way of rewriting asks
def _begin_later_in(tree: ast.Module) -> bool:
    functions = [n for n in every(tree) if isinstance(n, Function)]
    source = Source("", tree)  # for what is around a node alone
    return any(brings_more(f, n) for f in functions for n in walk(f) if isinstance(n, ast.If)) or any(
        _lets_train(source, n) for n in every(tree)
    )


def _lets_train(source: Source, node: ast.AST) -> bool:
    """``if epoch == 2:`` around ``p.requires_grad_(True)`` of parameters, in a function."""
    grows = isinstance(node, ast.Call) and called(node) == "requires_grad_" and not _is_false(node.args)
    targets = node.targets if isinstance(node, ast.Assign) and not _is_false([node.value]) else []
    sets = any(isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in targets)
    if not grows and not sets:
        return False
    function, above = source.function_of(node), [*source.above(node)]
    if function is None or function.name == "__init__":
        return False
    loops = [ast.unparse(n.iter) for n in above if isinstance(n, ast.For)]
    branches = [n for n in above if isinstance(n, ast.If) and not asks_otherwise(n.test)]
    return bool(branches) and (any("parameters" in each for each in loops) or (grows and _is_net(node)))


def _is_net(node: ast.AST) -> bool:
    """Whether what trains from now on is a module, by an attribute of an object, and no input."""
    return isinstance(node, ast.Call) and "." in path_of(node.func).rpartition(".")[0]


def _is_false(values: list[ast.expr]) -> bool:
    return bool(values) and isinstance(values[0], ast.Constant) and values[0].value is False


def momenta(source: Source, call: ast.Call) -> list[Edit]:
    """Lines that begin all momenta of an SGD at once, where it is made, or none where it has no momentum."""
    made = next((n for n in source.above(call) if isinstance(n, ast.Assign)), None)
    given = {each.arg for each in call.keywords}
    if made is None or called(call) != "SGD" or not (given & {"momentum", None} or len(call.args) > _MOMENTUM):
        return []
    target = next((source.text(one) for one, value in assigned(made) if value is call), source.text(made.targets[0]))
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
