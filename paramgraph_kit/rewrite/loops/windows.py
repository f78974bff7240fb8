"""Places that are others in each round of a loop: ``image[:, y : y + 16]`` is picked before it, or written behind it.

Where a slice begins is a number of the host's, of which a graph would keep the first.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from paramgraph_kit.rewrite.loops.spans import Block
from paramgraph_kit.rewrite.source.edits import Source, free_names, names_in, path_of
from paramgraph_kit.rewrite.source.moving import stored


def moving_names(source: Source, loop: Block, tensors: Collection[str]) -> set[str]:
    """Names that rounds of a loop give other values, and that no tensor has."""
    around = [each for each in (loop, *source.above(loop)) if isinstance(each, ast.For)]
    if not isinstance(loop, (ast.For, ast.While)):
        return set()
    return (stored([each.target for each in around]) | stored(loop.body)) - {*tensors}


def picked(
    node: ast.stmt, moving: Collection[str], is_tensor: Callable[[str], bool], arrays: Collection[str]
) -> Iterator[tuple[ast.Subscript, str]]:
    """Tensors of which a statement reads places that move, and their paths; not where one array is all of the place.

    A round is given that as a tensor.
    """
    waiting: list[ast.AST] = [node]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, (ast.Lambda, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            continue
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load) and _moves(each, moving):
            whole = isinstance(each.slice, ast.Name) and each.slice.id in arrays
            path = path_of(each)
            if path and is_tensor(path) and each.lineno == each.end_lineno and not whole:
                yield each, path
                continue
        waiting += ast.iter_child_nodes(each)


def put(
    node: ast.stmt, moving: Collection[str], is_tensor: Callable[[str], bool], later: Sequence[ast.stmt]
) -> ast.expr | None:
    """What a statement writes to a place that moves, and that the rest of the round does not read."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return None
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    if not isinstance(target, ast.Subscript) or not _moves(target, moving) or not is_tensor(path_of(target)):
        return None
    root = path_of(target).partition(".")[0]
    if root in names_in(node.value) or any(root in free_names(each) for each in later):
        return None
    return node.value


def computes_more(value: ast.expr) -> bool:
    """Whether an expression is more than a name."""
    return any(isinstance(each, (ast.Call, ast.BinOp, ast.Compare, ast.UnaryOp)) for each in ast.walk(value))


def tensor_test(tensors: Collection[str], value: Callable[[str], Any]) -> Callable[[str], bool]:
    """Whether a path leads to a tensor."""
    return lambda path: path in tensors or isinstance(value(path), torch.Tensor)


def _moves(node: ast.Subscript, moving: Collection[str]) -> bool:
    names = names_in(node.slice)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    plain = (ast.Slice, ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp)
    return bool(names & set(moving)) and all(isinstance(each, plain) for each in parts)
