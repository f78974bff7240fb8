"""What keeps a tensor that a capture reads and that its function alone has: told with the names that it has there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.filled_anew import with_new_values
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_regions import Region, graphs_at, to_keep
from paramgraph_kit.doctor.observe.rebound_entries import as_rebound, is_rebound
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_FREED = "freed-input"
_NAMED = re.compile(r"is replayed, and (?P<names>.+), which it reads here,")
_SEVERAL = re.compile(r"is replayed, and (?P<count>\d+) tensors that it reads here")
_READS = re.compile(r"\.reads = \((?P<names>[^)]*)\)")
_CAST = "autocast keeps the cast of a weight that is read here: it is gone with the block, and no replay casts again"


def is_gone(failure: Failure) -> bool:
    """Whether it tells of something that a graph reads, and that is gone."""
    return failure.code == _FREED or failure.message == _CAST or is_rebound(failure)


def kept_by_name(
    found: Iterable[Failure], regions: Collection[Region], also: Callable[[Failure], bool]
) -> list[Failure]:
    """What has been freed of all that is found, and what is ``also`` told; by name where a capture's line reads it."""
    own = (f for f in found if is_gone(f) or also(f))
    return [_with_names(f, regions) if f.code == _FREED and f.fix == BY_ID[_FREED].fix else f for f in own]


def gone_at(
    lines: Iterable[tuple[Frame | None, int]], region: Region | None, named: Mapping[int, str]
) -> Iterator[Failure]:
    """Lines of a graph that is replayed whose tensors are gone, each with what memory that was.

    ``named``: what the function that captured has called that, where no more is known of its capture.
    """
    lines = [*lines]
    called = region.called if region is not None else named
    names = {called[key] for _, key in lines if key in called}
    for frame in dict.fromkeys(frame for frame, _ in lines):
        keys = {key for at, key in lines if at == frame}
        own = sorted({called[key] for key in keys if key in called})
        what = f"{' and '.join(own)}, which it reads here," if own else "a tensor that it reads here"
        what = what if own or len(keys) == 1 else f"{len(keys)} tensors that it reads here"
        text = f"the graph is replayed, and {what} {'is' if len(own or keys) == 1 else 'are'} gone: nothing has kept it"
        failure = BY_ID[_FREED].failure(text, frame)
        again = failure if own else as_rebound(failure, region)
        yield again if region is None or again is not failure else as_read(failure, region, names)


def is_of(failure: Failure, names: Collection[str], there: Collection[str]) -> bool | None:
    """Whether what is told to be gone is no more than what these names meant; None where it is not known.

    Args:
        failure: a line of a graph that reads what is gone.
        names: those that mean something else by now.
        there: which of these its line has.
    """
    if named := _NAMED.search(failure.message):
        return {*named["names"].split(" and ")} <= {*names}
    return len(there) >= int(several["count"]) if (several := _SEVERAL.search(failure.message)) else None


def as_read(failure: Failure, region: Region, gone: Collection[str] = ()) -> Failure:
    """What a capture reads and what is gone: by its name there, or as the cast of a weight that autocast has kept."""
    frame = failure.frame
    if frame is None:
        return failure
    kept, cached = to_keep(region, gone), without_cache(region)
    own = {*names_kept(kept)}
    if cached and own.isdisjoint(re.findall(r"\w+", frame.text) if _is_there(frame, region) else own):
        return replace(BY_ID["autocast-cache"].failure(_CAST, frame), fix=cached)
    return replace(failure, fix=with_new_values(kept, names_kept(kept), region)) if kept else failure


def names_kept(fix: str) -> list[str]:
    """What the words keep with a graph."""
    found = _READS.search(fix)
    return re.findall(r"\w+", found["names"]) if found is not None else []


def _is_there(frame: Frame, region: Region) -> bool:
    last = region.body[-1].end_lineno or region.body[-1].lineno if region.body else 0
    return frame.file == display_name(region.code.co_filename) and region.line <= frame.line <= last


def without_cache(region: Region) -> str:
    """The autocast around a capture, and the same that keeps no casts, so that each replay casts again."""
    tree = tree_of(region.code.co_filename)
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.With)] if tree is not None else []
    around = [n for n in blocks if n.lineno <= region.line <= (n.end_lineno or n.lineno)]
    calls = [item.context_expr for n in around for item in n.items if isinstance(item.context_expr, ast.Call)]
    casts = [c for c in calls if last_name(c.func) == "autocast" and all(k.arg != "cache_enabled" for k in c.keywords)]
    if not casts:
        return ""
    call, off = casts[-1], ast.keyword("cache_enabled", ast.Constant(False))
    own = ast.unparse(ast.Call(call.func, call.args, [*call.keywords, off]))
    return f"before  with {ast.unparse(call)}: (line {call.lineno})\nafter   with {own}: each replay casts again"


def _with_names(failure: Failure, regions: Collection[Region]) -> Failure:
    if (frame := failure.frame) is None:
        return failure
    for region in regions:
        if _is_there(frame, region):
            named = as_read(failure, region)
            if named.code != _FREED or not set(names_kept(named.fix)).isdisjoint(re.findall(r"\w+", frame.text)):
                return named
            return failure
    found = _NAMED.search(failure.message)
    names = found["names"].split(" and ") if found is not None else []
    for region in regions if names else ():
        if {*names} <= {*region.code.co_varnames}:
            return as_read(failure, region, names)
    if shared := _shared(frame, regions):
        return replace(failure, fix=shared)
    cached = [region for region in regions if without_cache(region)]
    return as_read(failure, cached[0]) if len(cached) == len([*regions]) == 1 and not to_keep(cached[0]) else failure


def _shared(frame: Frame, regions: Collection[Region]) -> str:
    """Variables that a function defined beside the capture reads there, and that are gone with it."""
    for region in regions:
        code, text = region.code, re.findall(r"\w+", frame.text)
        inner = [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == frame.function]
        held = {**region.names, **region.cells}
        names = [n for n in dict.fromkeys(text) if n in code.co_cellvars and is_a(held.get(n), torch.Tensor)]
        graphs = graphs_at(region)
        if inner and names and graphs and frame.file == display_name(code.co_filename):
            kept = f"{graphs[-1]}.reads = ({', '.join(names)}{',' if len(names) == 1 else ''})"
            return f"before  {frame.text}\nafter   this line as it is, and behind the capture: {kept}"
    return ""
