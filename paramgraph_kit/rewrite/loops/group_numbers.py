"""Numbers of an optimizer's groups that a loop sets, and that torch takes as numbers only: a graph keeps the first."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.rewrite.counting.optimizers import DECAYS, stepped
from paramgraph_kit.rewrite.source.edits import Source, path_of, within
from paramgraph_kit.rewrite.source.place import target_of

_NUMBERS = frozenset(("weight_decay", "momentum", "betas", "alpha", "eps", "dampening"))
_APART = (torch.optim.AdamW,)  # whose decay goes past the gradients
_SINCE = (
    "`{text}` (line {line}) sets a number that torch takes as one only, and a graph keeps the first: call `{round}` "
    "as it is as long as that changes, and launch a graph that is captured after that"
)
_DECAY = (
    "`{text}` (line {line}) sets a number that torch takes as one only, and a graph keeps the first. With the decay in "
    "tensors the graph reads it: where `{opt}` is made, once,\n"
    '{indent}for group in {opt}.param_groups: group["decay"], group["weight_decay"] = '
    'torch.tensor(float(group["weight_decay"]), device={device}), 0.0\n'
    "{indent}in place of line {line} `{target}.fill_({value})`, and in `{round}` before `{opt}.step()`\n"
    "{indent}with torch.no_grad():\n"
    "{indent}    for group in {opt}.param_groups:\n"
    '{indent}        for p in group["params"]:\n'
    "{indent}            if p.grad is not None: {line_of_it}"
)
INDENT = " " * 11


def told(
    source: Source, functions: Sequence[ast.AST], part: Sequence[ast.stmt], name: str, known: Any, device: str
) -> str:
    """What to do about the first of them that functions set, or "".

    Args:
        part: the statements of the round.
        name: what the round is called.
        known: gives what a name stands for.
    """
    optimizers = dict.fromkeys(stepped(node) for node in part if isinstance(node, ast.Expr) and stepped(node))
    for node in (n for function in functions for n in within(function)):
        target = target_of(node)
        key = target.slice if isinstance(target, ast.Subscript) else None
        if (
            not isinstance(node, ast.Assign)
            or not isinstance(target, ast.Subscript)
            or isinstance(node.value, ast.Constant)
        ):
            continue
        if not isinstance(key, ast.Constant) or key.value not in _NUMBERS or not optimizers:
            continue
        text, of = source.text(node), path_of(target.value) or source.text(target.value)
        opt = next(iter(optimizers)) if len(optimizers) == 1 else ""
        made = known(opt) if opt else None
        if key.value != "weight_decay" or not isinstance(made, torch.optim.Optimizer):
            return _SINCE.format(text=text, line=node.lineno, round=name)
        apart = isinstance(made, _APART) or any(group.get("decoupled_weight_decay") for group in made.param_groups)
        by = DECAYS["AdamW" if apart else "SGD"]
        return _DECAY.format(
            text=text,
            line=node.lineno,
            opt=opt,
            round=name,
            device=device,
            target=f'{of}["decay"]',
            value=source.text(node.value),
            line_of_it=by,
            indent=INDENT,
        ) + _read_elsewhere(source, functions)
    return ""


def _read_elsewhere(source: Source, functions: Sequence[ast.AST]) -> str:
    """Where the decay is read as a number, which is 0 then."""
    every = (n for function in functions for n in within(function) if isinstance(n, ast.Subscript))
    read = [n for n in every if isinstance(n.slice, ast.Constant) and n.slice.value == "weight_decay"]
    lines = (
        f'\n{INDENT}in line {n.lineno} `float({source.text(n.value)}["decay"])` in place of `{source.text(n)}`'
        for n in read
        if isinstance(n.ctx, ast.Load)
    )
    return "".join(dict.fromkeys(lines))
