"""What the names of arguments say of them: that they are the next call's, or nothing that a graph is to read."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of, tree_of
from paramgraph_kit.trace.model import Frame

PART = "the part of {given} that this replay is for"
_NEXT = ("next", "nxt", "upcoming", "following", "prefetch", "future")
_TARGETS = ("label", "target", "ground_truth")
_LEARNS = ("backward", "loss", "entropy")


def is_of_the_next(text: str) -> bool:
    """Whether an argument is meant for the call behind this one, and may be copied behind a replay."""
    return any(each in text.lower() for each in _NEXT)


def last_of(text: str) -> str:
    """The name that a path ends in: ``b`` of ``batch['b']``."""
    inner = text.rpartition("[")[2].rstrip("]").strip("'\"")
    return inner if not inner.isdecimal() else ""


def table_of(text: str) -> str:
    """What has an entry, or a field: ``self.batch`` for ``self.batch.mask``."""
    return text.rpartition("[" if text.endswith("]") else ".")[0]


def part_of(name: str, path: str, given: torch.Size, held: torch.Size) -> str:
    """How an argument reaches a place of its name that is longer than it, or as long as each of its parts."""
    place = last_of(path.rpartition(".")[2]).lower()
    if not name or not given or not held or (place.strip("_") not in _forms(name) and name.lower() not in place):
        return ""
    if len(given) == len(held) and given[1:] == held[1:] and given[0] < held[0]:
        return "{path}[:len({given})].copy_({given})"
    if given[1:] == held:
        return f"{{path}}.copy_({PART})"
    return ""


def part_in_loop(given: str, replay: Frame | None) -> str:
    """What a loop around a replay calls the parts of an argument: ``y`` in ``for x, y in zip(xs, ys)``."""
    tree = tree_of(replay.file) if replay is not None else None
    for node in (n for n in (ast.walk(tree) if tree is not None else ()) if isinstance(n, ast.For)):
        if replay is None or not node.lineno <= replay.line <= (node.end_lineno or 0):
            continue
        over, target = node.iter, node.target
        parts = [*elements_of(target)]
        if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and over.args and len(parts) > 1:
            over, target = over.args[0], parts[1]
        zipped = over.args if isinstance(over, ast.Call) and last_name(over.func) == "zip" else [over]
        names = [*elements_of(target)] if len(zipped) > 1 else [target]
        for value, name in zip(zipped, names, strict=False):
            if ast.unparse(value) == given and isinstance(name, ast.Name):
                return name.id
    return ""


def _forms(name: str) -> tuple[str, ...]:
    """What one of several has as its name: ``y`` of ``ys``."""
    return (name.lower(), name.lower().removesuffix("s"))


def is_apart(
    given: str, path: str, held: torch.Tensor, code: CodeType, beside: Iterable[str] = (), others: Iterable[str] = ()
) -> bool:
    """Whether an argument that nothing reads is not for what a graph reads, as both are named.

    Args:
        given: the argument.
        path: what the graph reads.
        held: that itself.
        code: the function that captures; a capture that computes no loss reads no labels.
        beside: what else the call is given.
        others: what else the graph reads.
    """
    name, place = last_of(given).lower(), last_of(path.rpartition(".")[2]).lower()
    if not name or not place or name in place or place in name:
        return False
    if name[:1] == "_" or _is_ramp(held):
        return True
    if any(each in name for each in _TARGETS):
        return not any(each in place for each in _TARGETS) and not _learns(code)
    if not (given.endswith("]") and path.endswith("]")):
        return False
    # Two tables that know their entries by the same names mean other ones by others.
    known = {last_of(each) for each in others if table_of(each) == table_of(path)}
    keys = {last_of(each) for each in beside if table_of(each) == table_of(given)}
    return bool((known & keys) - {""})


def _is_ramp(tensor: torch.Tensor) -> bool:
    """Whether whole numbers count up along the last dimension: positions, which stay as they are."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or not tensor.dim():
        return False
    return tensor.shape[-1] > 1 and bool((tensor[..., 1:] - tensor[..., :-1] == 1).all())


def _learns(code: CodeType) -> bool:
    """Whether the lines of a function, or of those of its file that it names, name a loss, or go backward."""
    tree = tree_of(code.co_filename) or ast.Module([], [])
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    waiting = [*nodes_of(code)]
    for node in waiting:  # it grows by the functions that are named
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if any(part in name.lower() for part in _LEARNS):
            return True
        if (other := functions.pop(name, None)) is not None:
            waiting += ast.walk(other)
    return False
