"""Gradients that lines take away at times, behind the launch: the step misses them, and the next replay has them again.

A graph writes the gradients of its capture, wherever ``p.grad`` leads by then. So what is taken away for one step is
held, and given back right behind it: ``for p, grad in held: p.grad = grad``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from paramgraph_kit.rewrite.counting.optimizers import stepped
from paramgraph_kit.rewrite.source.cancelled import taken_in
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import STOPS, body_of, is_backward
from paramgraph_kit.rewrite.source.place import called, fresh

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Where such a step is cut, and the lines that hold its gradients and give them back."""

    cut: int  # the first statement of the body that takes gradients away
    lines: tuple[Sequence[str], ast.stmt, Sequence[str]]  # before what is behind the launch, and behind the last step


def given_back(sources: Collection[Source], source: Source, function: Function) -> GivenBack | None:
    """How a step can be cut where gradients are taken away, if all that has to do with them is known."""
    order = list(body_of(function))
    taken = {id(node) for node in taken_in(sources, function)}
    tops = [node for node in order if any(id(n) in taken for n in ast.walk(node))]
    at = [number for number, node in enumerate(order) if node in tops]
    if not at or any(isinstance(n, STOPS) for node in order[at[0] : -1] for n in within(node)):
        return None
    before, behind = order[: at[0]], order[at[0] :]
    steps = [(node, name) for node in behind if (name := _steps(node))]
    zeros = [n for node in order for n in within(node) if isinstance(n, ast.Call) and called(n) == "zero_grad"]
    names = list(dict.fromkeys(name for _, name in steps))
    known = len({node for node, _ in steps}) == len(steps) > 0 and bool(zeros)
    if not known or not _goes_back(before) or _goes_back(behind) or any(_steps(node) for node in before):
        return None
    last = steps[-1][0]
    if _is_read(sources, [*behind[: behind.index(last)], *before], function):
        return None
    held = fresh("held", {*names_in(source.tree), *locals_of(function)})
    every = " + ".join(f"{name}.param_groups" for name in names)
    ahead = f'{held} = [(p, p.grad) for group in {every} for p in group["params"]]'
    back = [f"for p, grad in {held}:  # the next launch writes all of them", "    p.grad = grad"]
    return GivenBack(at[0], ([ahead], last, back))


def _steps(node: ast.stmt) -> str:
    """``opt`` for ``opt.step()`` that is a statement of the body, or ""."""
    return stepped(node, scaled=False) if isinstance(node, ast.Expr) and not getattr(node.value, "args", 1) else ""


def _goes_back(nodes: Iterable[ast.stmt]) -> bool:
    return any(is_backward(n) for node in nodes for n in ast.walk(node))


def _is_read(sources: Iterable[Source], beside: Sequence[ast.stmt], function: Function) -> bool:
    """Whether lines behind the step, or of other functions that no step calls, read gradients: they would find some."""
    inside = {id(n) for node in beside for n in ast.walk(node)}
    names = {called(n) for node in beside for n in ast.walk(node) if isinstance(n, ast.Call)}
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Attribute) or not (node.attr == "grad" or node.attr in _CLIPS):
                continue
            above = source.function_of(node)
            own = id(node) in inside or (above is not None and above is not function and above.name in names)
            if not own and path_of(node) not in ("torch.autograd.grad", "autograd.grad"):
                return True
    return False
