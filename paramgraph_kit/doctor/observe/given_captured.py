"""Arguments that a function's own capture reads as they are, and of which a call that only replays reads nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.filled_anew import copied_ahead
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_COPIES = ("clone", "detach", "contiguous")
UNREAD = "this call does not read it, and the graph has what was there at its capture"


def captured_alone(
    given: Iterable[tuple[str, Any]], seen: Collection[int], touched: Collection[int], at: Place
) -> list[Failure]:
    """Told of a call whose graph has been captured before, from the lines of its function.

    ``seen``: memory that calls read, or write; ``touched``: where what the graphs read and write lies.
    """
    code = at.user[0] if at.user is not None else None
    if code is None or not touched:
        return []
    names = [name for name in code.co_varnames[: code.co_argcount] if name != "self"]
    nodes = [*nodes_of(code)]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inside = [n for block in captured_in(code) for part in block for n in ast.walk(part)]
    read = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - stored
    found = []
    for said, value in given:
        _, _, number = said.partition("argument ")
        name = names[int(number) - 1] if number.isdigit() and int(number) <= len(names) else said
        if name not in read or not is_a(value, torch.Tensor) or storage_key(value) in {0, *seen}:
            continue
        if value.untyped_storage().data_ptr() not in touched:  # else the caller writes what comes into it
            found.append(said)
    return [not_read(found, at)] if found else []


def not_read(said: list[str], at: Place, told: Iterable[Failure] = ()) -> Failure:
    """What is told of arguments at a replay, with the copy to the tensor that their own line has made for one.

    ``told``: what may say already what is to be copied there.
    """
    failure = BY_ID["stale-input"].failure(f"{', '.join(said)}: {UNREAD}", at.frame())
    code = at.user[0] if at.user is not None else None
    if code is None or len(said) != 1 or failure.frame is None:
        return failure
    names = [name for name in code.co_varnames[: code.co_argcount] if name != "self"]
    _, _, number = said[0].partition("argument ")
    name = names[int(number) - 1] if number.isdigit() and int(number) <= len(names) else said[0]
    places = [*_unpacked(code, name, failure.frame.line)] if name in names else []
    line = failure.frame.text
    copied = {copied_ahead(each.fix) for each in told if name in re.findall(r"\w+", copied_ahead(each.fix))}
    if len(places) != 1 and len(copied) == 1:
        return replace(failure, fix=f"before  {line}\nafter   {copied.pop()}; {line}")
    if len(places) != 1:
        return failure
    return replace(failure, fix=f"before  {line}\nafter   {places[0]}.copy_({name}); {line}")


def _unpacked(code: CodeType, name: str, line: int) -> Iterator[str]:
    """Names that a copy of an argument has where it is captured, and that a line gives back ahead of each replay."""
    assigns = [n for n in nodes_of(code) if isinstance(n, ast.Assign) and len(n.targets) == 1 and n.lineno < line]
    for node in (n for n in assigns if isinstance(n.targets[0], ast.Name)):
        made = node.targets[0].id  # type: ignore[attr-defined]
        value: ast.expr = node.value
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES:
            value = value.func.value
        given_back = (n for n in assigns if n.lineno > node.lineno and isinstance(n.targets[0], (ast.Tuple, ast.List)))
        parts = (part.id for n in given_back for part in elements_of(n.targets[0]) if isinstance(part, ast.Name))
        if value is not node.value and isinstance(value, ast.Name) and value.id == name and made in parts:
            yield made
