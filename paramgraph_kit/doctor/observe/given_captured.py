"""Arguments that a function's own capture reads as they are, and of which a call that only replays reads nothing."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

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
    return [BY_ID["stale-input"].failure(f"{', '.join(found)}: {UNREAD}", at.frame())] if found else []
