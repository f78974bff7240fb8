"""Arguments that nothing reads, of a step whose graph reads a tensor like them that nobody writes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.given_names import is_apart
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure


def unread(
    regions: Iterable[Region], given: Mapping[str, Any], seen: Collection[int], kind: str, at: Place
) -> Iterator[Failure]:
    """Each, with the one tensor of a graph of before that it can be for; ``seen``: memory that calls read, or write.

    A constant, or a size, may be of the same kind: what is told has one argument and one tensor that are alike.
    """
    there = {
        name: value
        for name, value in given.items()
        if is_a(value, torch.Tensor) and value.device.type == kind and storage_key(value) not in {0, *seen}
    }
    own = {storage_key(value) for value in there.values()}
    if not there or any("/threading.py" in file or "/concurrent/" in file for file in at.files) or _has_threads(at):
        return  # what another thread writes, or reads, nobody has seen
    held, codes = dict[int, tuple[str, torch.Tensor]](), dict[int, CodeType]()
    for region, use in ((r, use) for r in regions if r.values is not None for use in r.values.uses):
        value = use.value()
        if not is_a(value, torch.Tensor) or value.device.type != kind or value.requires_grad:
            continue
        if (key := storage_key(value)) not in seen and key not in own:
            codes.setdefault(key, region.code)
            held.setdefault(key, (use.text, value))
    for name, value in there.items():
        like = [key for key, (_, tensor) in held.items() if _is_alike(tensor, value)]
        if len(like) == 1 and sum(_is_alike(each, value) for each in there.values()) == 1 and name[:1] != "_":
            path, tensor = held[like[0]]
            if is_apart(name, path, tensor, codes[like[0]]):
                continue
            text = f"{name}: no line of this call reads it, and the graph reads {path}, to which nothing is written"
            failure = BY_ID["stale-input"].failure(text, at.frame())
            line = failure.frame.text if failure.frame is not None else "g.replay()"
            names = at.user[0].co_varnames[: at.user[0].co_argcount] if at.user is not None else ()
            words = "" if name in names else ", by the names that both have there"
            yield replace(failure, fix=f"before  {line}\nafter   {path}.copy_({name}){words}; {line}")


def _has_threads(at: Place) -> bool:
    tree = tree_of(at.user[0].co_filename) if at.user is not None else None
    nodes = ast.walk(tree) if tree is not None else ()
    return any("Thread" in last_name(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute)))


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(one.dim())
