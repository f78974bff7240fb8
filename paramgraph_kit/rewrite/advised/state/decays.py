"""Advice for a weight decay that a step sets anew by what the host counts: torch takes it as a number alone."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.counting.optimizers import DECAYS
from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of

INDENT = " " * 11  # of lines below what is said of a place


def decay_in_a_tensor(tree: ast.Module, node: ast.stmt, place: str, device: str) -> str:
    """``for group in opt.param_groups: group["weight_decay"] = f(step)``, as lines around the step and in it.

    Also ``opt.param_groups[0]["weight_decay"] = f(step)``, of one of them.
    """
    target = target_of(node)
    key = target.slice if isinstance(target, ast.Subscript) else None
    if not isinstance(node, ast.Assign) or not isinstance(key, ast.Constant) or key.value != "weight_decay":
        return ""
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For) and node in n.body]
    one = target.value if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript) else None
    over = one.value if one is not None else loops[0].iter if loops and len(loops[0].body) == 1 else None
    if not isinstance(over, ast.Attribute) or over.attr != "param_groups" or not isinstance(target, ast.Subscript):
        return ""
    opt, group = ast.unparse(over.value), "group" if one is not None else ast.unparse(target.value)
    if one is None and ast.unparse(loops[0].target) != group:
        return ""
    made = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == opt]
    kinds = {called(each) for each in made if isinstance(each, ast.Call)}
    by = DECAYS["AdamW" if "AdamW" in kinds else "SGD"].replace("group[", f"{group}[")
    own = sorted(_locals_of(tree, node) & {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)})
    first = f", with `{'`, `'.join(own)}` as the step finds it," if own else ""
    every = f"for {group} in {opt}.param_groups:" if one is None else f"for {group} in ({ast.unparse(one)},):"
    return (
        f"{place} sets a number that torch takes as one only, and a graph keeps the first. With the decay in "
        f"tensors the graph reads it: where `{opt}` is made, once,\n"
        f'{INDENT}{every} {group}["decay"], {group}["weight_decay"] = '
        f'torch.tensor(float({group}["weight_decay"]), device={device}), 0.0\n'
        f"{INDENT}take that {'loop' if one is None else 'line'} out of the step, before each launch{first} do\n"
        f'{INDENT}{every} {group}["decay"].fill_({ast.unparse(node.value)})\n'
        f"{INDENT}and in the step before `{opt}.step()`\n"
        f"{INDENT}with torch.no_grad():\n"
        f"{INDENT}    {every}\n"
        f'{INDENT}        for p in {group}["params"]:\n'
        f"{INDENT}            if p.grad is not None: {by}"
    )


def step_of_a_decay(place: Place) -> str:
    """``opt.step()``, whose decay another line of the step sets: the graph's numbers differ there, and by no rate."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "learning-rate-frozen" or function is None or is_rated(place.source.tree):
        return ""
    for made in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        target = made.targets[0]
        key = target.slice if isinstance(target, ast.Subscript) else None
        if isinstance(key, ast.Constant) and key.value == "weight_decay" and made.lineno < node.lineno:
            said = f"follows from line {made.lineno}, which sets another decay: with that in tensors it stays as it is"
            told = decay_in_a_tensor(place.source.tree, made, f"line {made.lineno}", place.device)
            return f"{said}. {told}" if told else said
    return ""


def is_rated(tree: ast.Module) -> bool:
    """Whether something of a file sets a rate, too."""
    keys = (n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    return any(isinstance(key, ast.Constant) and key.value == "lr" for key in keys)


def _locals_of(tree: ast.Module, node: ast.stmt) -> set[str]:
    """Names that the function around a statement gives a value, and that are its own."""
    for function in (n for n in ast.walk(tree) if isinstance(n, Function) and node in set(ast.walk(n))):
        every = list(ast.walk(function))
        outer = {name for n in every if isinstance(n, ast.Global) for name in n.names}
        stores = {path_of(n) for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return stores - outer - {"group"}
    return set()
