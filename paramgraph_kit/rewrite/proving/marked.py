"""Whole numbers that are no places: what marks a missing label, and what lies beyond each table.

A branch, or a mask, keeps these from being looked up; lines that compute both ways look them up all the same, which on
a GPU ends the process's context.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paramgraph_kit.rewrite.proving.closeness import RETURNS, Seen

MISSING = -100  # as losses of torch's have it
MOST = 3  # tensors, and as many numbers of the program's own
_BEYOND = re.compile(r"out of (\w+ )?(range|bounds)")
LOOKED_UP = "with inputs {name} it looks up what lies beyond a tensor, which the original does not ask for ({error})"


class Cut(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes whether a slice ended beyond its tensor, or a count had more places than were asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.off = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.slice.Tensor and len(args) > 2:
            size, ends = args[0].shape[args[1]], [n for n in args[2:4] if type(n) is int and n < 2**62]
            self.off |= any(n > size or n < -size for n in ends)
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bincount.default:
            least = args[2] if len(args) > 2 else (kwargs or {}).get("minlength", 0)
            self.off |= len(result) > least > 0
        return result


def marks(given: Any, held: Iterable[torch.Tensor], trees: Iterable[ast.AST]) -> dict[str, Callable[[Any], Any]]:
    """For some of the tensors of whole numbers that are given, one of their elements as such a number."""
    tensors = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
    whole = [each for each in tensors if _is_whole(each)][:MOST]
    sizes = [size for each in (*tensors, *held) for size in each.shape]
    sides = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Compare)]
    asked = [n.value for each in sides for n in each.comparators if isinstance(n, ast.Constant)]
    own = [n for n in dict.fromkeys(asked) if type(n) is int and n > 1][:MOST]
    numbers = dict.fromkeys((MISSING, max(sizes, default=0) + 1, *own))
    return {
        f"of which number {k + 1} of the whole ones has {number}": _with(k, number)
        for k in range(len(whole))
        for number in numbers
        if number != MISSING or whole[k].dim()  # a number alone counts, and is nobody's label
    }


def looked_up(name: str, error: BaseException) -> str:
    """What to say of an error of rewritten lines that have looked up such a number, or "" of another one."""
    text = str(error).partition("\n")[0]
    return LOOKED_UP.format(name=name, error=text) if _BEYOND.search(text) else ""


def of_one_kind(seen: Seen, known: Seen | None) -> bool:
    """Whether what a step returns has the shapes that it has with its own inputs."""
    shapes = [[getattr(each, "shape", None) for each in one.get(RETURNS, [])] for one in (seen, known or seen)]
    return shapes[0] == shapes[1]


def _is_whole(value: Any) -> bool:
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return bool(whole and value.dtype is not torch.bool and value.numel())


def _with(number: int, mark: int) -> Callable[[Any], Any]:
    seen = count()

    def change(value: Any) -> Any:
        if not _is_whole(value) or next(seen) != number:
            return value
        bounds = torch.iinfo(value.dtype)
        if not bounds.min <= mark <= bounds.max:
            return value
        plain = value.detach().clone(memory_format=torch.contiguous_format)
        plain.view(-1)[plain.numel() // 2] = mark
        return plain

    return change
