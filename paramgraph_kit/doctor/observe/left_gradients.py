"""Gradients that the warm-up of a capture of before leaves, to which the first replay adds: as the lines tell."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, defines, last_name, tree_of
from paramgraph_kit.doctor.observe.one_graph import OneGraph
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.zeroed_ahead import learning_in

_IN_PLACE = ("zero_", "_foreach_zero_", "fill_", "copy_", "_foreach_copy_")


def left_gradients(
    region: Region, block: ast.stmt, inside: Collection[ast.AST], own: OneGraph
) -> Iterator[torch.Tensor]:
    """The parameters whose gradients a warm-up leaves, and that no line may zero ahead of the first replay.

    ``inside``: all that is captured, which a warm-up runs, too.
    """
    called = {last_name(n.func) for n in inside if isinstance(n, ast.Call)}
    names = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in inside)
    if "backward" not in called or "zero_grad" in called or names or _zeroed(region, block):
        return
    used = {n.id for n in inside if isinstance(n, ast.Name)} | {n.attr for n in inside if isinstance(n, ast.Attribute)}
    for parameter in learning_in(region, used):
        if parameter.grad is not None and not own.writes(parameter.grad):  # else the capture has made it
            yield parameter


def _zeroed(region: Region, block: ast.stmt) -> bool:
    """Whether a line may zero gradients behind a warm-up and ahead of the first replay.

    Only what stands ahead of the warm-up, and behind a replay in its function, surely does not.
    """
    tree = tree_of(region.code.co_filename)
    makes = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])] if tree is not None else []
    last = max((n.lineno for n in ast.walk(block) if isinstance(n, ast.Call)), default=block.lineno)
    late = set[ast.AST]()
    zeroing = {n.name for n in makes if any(map(_zeroes, ast.walk(n)))}
    for each in makes:
        nodes = [*ast.walk(each)]
        replays = [n.lineno for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "replay"]
        captures = defines(each, region.code)
        if replays and not captures:
            late |= {n for n in nodes if getattr(n, "lineno", 0) > min(replays)}
        elif captures:
            late |= {n for n in nodes if getattr(n, "lineno", last + 1) <= last}
            late |= {n for n in nodes if replays and getattr(n, "lineno", 0) > min(replays)}
        if replays or captures:
            zeroing.discard(each.name)
    for node in ast.walk(tree) if tree is not None else ():
        if node not in late and (_zeroes(node) or (isinstance(node, ast.Call) and last_name(node.func) in zeroing)):
            return True
    return False


def _zeroes(node: ast.AST) -> bool:
    """Whether a line gives gradients zeros, or sets them to None."""
    if isinstance(node, ast.Assign):
        return any(isinstance(n, ast.Attribute) and n.attr == "grad" for t in node.targets for n in ast.walk(t))
    if not isinstance(node, ast.Call):
        return False
    grads = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(node))
    return last_name(node.func) == "zero_grad" or (grads and last_name(node.func) in _IN_PLACE)
