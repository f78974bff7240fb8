"""Advice for a copy of a module that takes the place of the last one, which a graph reads: it is loaded into that."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.advised.state.called_last import called_last
from paramgraph_kit.rewrite.advised.state.rebuilt import rebuilt_record
from paramgraph_kit.rewrite.source.edits import names_in, path_of
from paramgraph_kit.rewrite.source.loaded_copies import loaded
from paramgraph_kit.rewrite.source.place import Place

_BEHIND = "the same behind each launch, where nothing waits for it, with {}"
_CODES = ("host-counter", "stale-input", "parameter-rebound")


def copied_module(place: Place) -> str:
    """``self.target = copy.deepcopy(self.net)``, and what reads ``self.target`` in the step."""
    every, node = [*place.source.parents], place.statement
    if place.failure.code == "branch-frozen" and isinstance(node, ast.If) and not node.orelse:
        found = [(n.lineno, lines) for n in node.body if (lines := loaded(place.source, n, place.value, every))]
        there = (f"{_joined(lines)} for line {n}" for n, lines in found)
        copied = [n for n in node.body if not isinstance(n, ast.Expr)]  # others set its mode, or say so
        return _BEHIND.format(" and ".join(there)) if found and len(found) == len(copied) else ""
    if place.failure.code not in _CODES:
        return ""
    if lines := loaded(place.source, place.statement, place.value, every):
        return f"{_joined(lines)}: a graph goes on with the module that it was captured with"
    if place.failure.code != "stale-input":
        return ""
    copies = [n for n in every if isinstance(n, ast.Assign) and _is_read(place, n.targets[0])]
    for node in copies:
        if lines := loaded(place.source, node, place.value, every):
            return f"stays as it is, where line {node.lineno} becomes {_joined(lines)}, into the module that it reads"
    return ""


def _is_read(place: Place, target: ast.expr) -> bool:
    """Whether a statement calls what a line gives another module, or is one of its methods'."""
    if place.source.text(target) in place.text(place.statement):
        return True
    function = place.source.function_of(place.statement)
    owner = place.source.parents.get(function) if function is not None else None
    held = place.value(path_of(target)) if not names_in(target) & place.local(target) - {"self"} else None
    kinds = (type(each) for each in held.modules()) if isinstance(held, torch.nn.Module) else ()
    return isinstance(owner, ast.ClassDef) and any(kind.__name__ == owner.name for kind in kinds)


def _joined(lines: list[str]) -> str:
    *first, last = (f"`{each}`" for each in lines)
    return f"{', '.join(first)} and {last}" if first else last


FIRST = (called_last, copied_module, rebuilt_record)
