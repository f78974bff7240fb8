"""Advice for a ``deque`` of tensors that a step adds to and reads: a window over the last so many, in one tensor."""

from __future__ import annotations

import ast
from collections import deque

import torch

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_CODES = ("output-alias", "scalar-frozen", "branch-frozen", "host-counter", "stale-input", "size-frozen")
_AT_TIMES = (ast.If, ast.For, ast.While, ast.Try, ast.Match)


def window_of_tensors(place: Place) -> str:
    """``recent.append(x.mean())`` with ``sum(recent) / len(recent)``, where ``recent`` holds at most so many."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in _CODES or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    for call in (n for n in every if isinstance(n, ast.Call) and called(n) == "append" and len(n.args) == 1):
        owner = path_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        held = place.value(owner) if owner else None
        if not isinstance(held, deque) or held.maxlen is None or not all(isinstance(v, torch.Tensor) for v in held):
            continue
        reads = [n for n in every if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == owner]
        if not any(place.statement in (n, *place.source.above(n)) for n in reads) or len(reads) < 2:
            continue
        if any(isinstance(n, _AT_TIMES) for n in place.source.above(call)):
            continue  # who knows after how many calls it is full, and a graph would write an entry in each
        size, name = held.maxlen, fresh("window", place.taken)
        if call not in set(ast.walk(place.statement)):
            return (
                f"goes with line {call.lineno}: `{name}`, the tensor that is said there, takes the place of `{owner}`"
            )
        given = call.args[0]
        read = read_of(place, given) if isinstance(given, ast.Call) else None
        value = place.source.bracketed(read if read is not None else given)
        made = f"torch.tensor([*{owner}], device={place.device})" if read is not None else f"torch.stack([*{owner}])"
        return (
            f"`{owner}` holds the last {size}, and no replay moves it on: keep them in one tensor, once `{owner}` is "
            f"full after {size} calls, `{name} = {made}`; here `{name}.copy_(torch.cat([{name}[1:], "
            f"{value}.detach()[None]]))`, and where it is read `{name}.sum(0)` for `sum({owner})`, `{size}` for "
            f"`len({owner})`, `{name}` for `torch.stack` of it, else `[*{name}]`"
        )
    return ""
