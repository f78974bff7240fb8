"""Variables beside a replay that have what comes next, where the graph reads what was made of the first: a mask, say.

``x, keep = batch()`` and ``static_x.copy_(x)``: nobody copies ``keep``, of which the capture has a clone.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FrameType

import torch
from torch.utils._python_dispatch import _disable_current_modes as no_modes

from paramgraph_kit.doctor.explain.syntax import nodes_of, pairs_of
from paramgraph_kit.doctor.observe.held import attributes_of, file_of, is_a
from paramgraph_kit.doctor.restore.keeper import storage_key

_AFFIXES = frozenset("s static in input inputs buf buffer g graph device dev cur".split())  # noqa: SIM905
_LOOKS = ("clone", "detach", "to", "contiguous", "float", "long", "bool")


def next_ones(
    frame: FrameType, places: Mapping[str, torch.Tensor], code: CodeType, written: Collection[int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Variables of a function for what the graph reads, and with other numbers than that has.

    Args:
        frame: of a function around the replay.
        places: what the graph reads, as the lines of its capture write it.
        code: the function that captures, in which a clone of such a variable may be made.
        written: memory that anything has been written to by now.
    """
    held, known = frame.f_locals, {*map(storage_key, places.values())}
    unfed = [(path, tensor) for path, tensor in places.items() if storage_key(tensor) not in written]
    for name in frame.f_code.co_varnames if unfed else ():
        value = held.get(name)
        if not is_a(value, torch.Tensor) or is_a(value, torch.nn.Parameter) or storage_key(value) in {0, *known}:
            continue
        alike = (tensor for path, tensor in unfed if is_named_for(name, path, code))
        if any(_fits(value, tensor) and _differs(value, tensor) for tensor in alike):
            yield name, value


def held_in_variables(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """What objects of the user's have that are variables of a function, and not its arguments: ``entry.keep``."""
    code = frame.f_code
    for name in code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]:
        value = frame.f_locals.get(name)
        if value is not None and not is_a(value, torch.nn.Module) and file_of(type(value)):
            parts = attributes_of(value).items()
            yield from ((f"{name}.{each}", part) for each, part in parts if is_a(part, torch.Tensor))


def shared_names(code: CodeType, captures: CodeType | None) -> Iterator[str]:
    """Variables that mean the same in a function and in the one that captures: of one around both, and their object."""
    yield from code.co_freevars
    kinds = {each.co_qualname.rpartition(".")[0] for each in (code, captures) if each is not None}
    firsts = {each.co_varnames[:1] for each in (code, captures) if each is not None}
    if len(kinds) == len(firsts) == 1 and not kinds & {""} and not code.co_qualname.endswith("<locals>"):
        yield from firsts.pop()


def is_named_for(name: str, path: str, code: CodeType) -> bool:
    """Whether what a graph reads has the name of a variable, as ``static_keep`` has, or was made of it as a copy."""
    last, own = path.rpartition(".")[2].partition("[")[0].lower(), name.lower()
    parts = {*last.split("_")}
    is_named = last in (own, f"s{own}") or (own in parts and parts - {own} <= _AFFIXES)
    return is_named or is_copy_of(name, path, code)


def is_copy_of(name: str, path: str, code: CodeType) -> bool:
    """Whether a function has made what its graph reads of what was given: ``sm = mask.clone()``."""
    pairs = (pair for node in nodes_of(code) for pair in pairs_of(node))
    return any(_base(value) == name for to, value in pairs if ast.unparse(to) == path)


def _base(value: ast.expr) -> str:
    """What a copy is made of: ``keep`` of ``keep.detach().clone()``; "" of anything else."""
    is_copy = False
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _LOOKS:
        is_copy, value = True, value.func.value
    return ast.unparse(value) if is_copy else ""


def _fits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.device.type) == (other.shape, other.dtype, other.device.type)


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    with no_modes(), torch.no_grad():
        return not torch.equal(one, other)
