"""What a step exchanges now and then, ``if n % 100 == 0``, where a graph reads the tensor, or module, of before."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.held import is_a, tensors_in
from paramgraph_kit.doctor.observe.other_ways import LED
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.rare_turns import Given
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.unsaved import load
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_WHERE = re.compile(r", ahead of [\w.\[\]]+\.replay\(\)$")
_COMPUTED = (ast.Call, ast.BinOp, ast.UnaryOp, ast.IfExp)


def exchanged_rarely(turns: Collection[Given], regions: Iterable[Region], told: Iterable[Failure]) -> Iterator[Failure]:
    """Lines that ran, or may, in branches which what moves, or is read, decides, and which no call has taken.

    Args:
        turns: these lines.
        regions: the captures.
        told: what is known already.
    """
    values = [r.values for r in regions if r.values is not None]
    read = {key for each in values for t in each.read() if (key := storage_key(t))}
    bound = [
        v for each in values for use in each.uses if is_a(v := use.value(), partial)
    ]  # which has its own arguments
    read |= {key for v in bound for t in tensors_in((v.args, v.keywords)) if (key := storage_key(t))}
    lines = {(f.frame.file, f.frame.line) for f in told if f.frame is not None}
    known = [each for each in turns if each[2] is not None and isinstance(each[1], ast.Assign)]
    places = {(f.__code__, ast.unparse(target), id(n)) for f, n, target, _ in known if target is not None}
    times = Counter((code, path) for code, path, _ in places)
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        for function, node, target, names in known if read else ():
            code, value = function.__code__, node.value  # type: ignore[attr-defined]
            path = ast.unparse(target) if target is not None else ""
            if target is None or not isinstance(value, _COMPUTED) or times[code, path] > 1:
                continue
            if len(node.targets) > 1 or node.targets[0] is not target:  # type: ignore[attr-defined]
                continue
            at = frame_at(code, node.lineno)
            fix = _fix(path, value, Use(code, target, False, names).value(), read)
            if (at.file, at.line) not in lines and fix:
                lines.add((at.file, at.line))
                text = f"{path} has other memory from here on, and the graph reads that of its capture; {LED}"
                yield replace(BY_ID["stale-input"].failure(text, at), fix=f"before  {at.text}\nafter   {fix}")


def as_led(told: Iterable[Failure], turned: Collection[tuple[str, int]]) -> list[Failure]:
    """The same, where lines are among it that no call came to by itself: each says so."""
    led = []
    for each in told:
        at = each.frame
        if at is not None and (at.file, at.line) in turned:  # it stays where it is: what calls it may stand behind
            each = replace(each, message=f"{each.message}; {LED}", fix=_WHERE.sub("", each.fix))
        led.append(each)
    return led


def _fix(path: str, new: ast.expr, value: Any, read: set[int]) -> str:
    """What writes into what is there; "" where no graph reads it."""
    if is_a(value, torch.Tensor):
        return f"{path}.copy_({ast.unparse(new)})" if storage_key(value) in read else ""
    if not is_a(value, torch.nn.Module) or read.isdisjoint(map(storage_key, value.parameters())):
        return ""
    copied = isinstance(new, ast.Call) and last_name(new.func) == "deepcopy" and len(new.args) == 1
    other = ast.unparse(new.args[0] if copied and isinstance(new, ast.Call) else new)
    return "; ".join(load(path, other, value))
