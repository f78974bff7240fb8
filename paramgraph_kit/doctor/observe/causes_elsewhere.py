"""The line of a cause, where a problem shows at another: what gives a name another tensor, and what sets a rate."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.fetched_anew import told_where_fetched
from paramgraph_kit.doctor.observe.one_call import MOVED
from paramgraph_kit.doctor.observe.source_lines import frame_at, written_at
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame


def exchanged_at(changes: Iterable[Change], codes: Sequence[CodeType]) -> dict[int, tuple[Frame, str]]:
    """By the memory that is given up: the line that gives a name another tensor, and how that is said."""
    found = dict[int, tuple[Frame, str]]()
    for change in changes:
        for entry in change.entries((torch.Tensor,)):
            if isinstance(entry.before, torch.Tensor) and (at := written_at(entry, codes)) is not None:
                name = entry.name if entry.key is None else f"{entry.name}[{entry.key!r}]"
                found[storage_key(entry.before)] = at, f": {name} gets another at {at.label()}"
    return found


def rebound_at(changes: Iterable[Change], codes: Sequence[CodeType]) -> set[Frame | None]:
    """The lines that give names other numbers or tensors."""
    return {written_at(entry, codes) for each in changes for entry in each.entries((*NUMBERS, torch.Tensor))}


def with_what_sets_it(problems: Iterable[Failure], codes: Sequence[CodeType]) -> list[Failure]:
    """The same, with the line that sets a number of an optimizer's groups, where only one does: ``g["lr"] = lr``.

    What is fetched anew is told at the line that fetches it.
    """
    return told_where_fetched([_with_its_line(f, codes) if MOVED in f.message else f for f in problems], codes)


def _with_its_line(failure: Failure, codes: Sequence[CodeType]) -> Failure:
    name = failure.message.partition(MOVED)[0]
    entries = [(code, n) for code in codes for n in nodes_of(code) if isinstance(n, ast.Subscript)]
    lines = {frame_at(code, n.lineno) for code, n in entries if _sets(n, name)} - {failure.frame}
    if len(lines) != 1:
        return failure
    return replace(failure, message=f"{failure.message}, set at {lines.pop().label()}")


def _sets(entry: ast.Subscript, name: str) -> bool:
    key = entry.slice
    return isinstance(entry.ctx, ast.Store) and isinstance(key, ast.Constant) and key.value == name
