"""Variables of a function that captures and replays: what they mean in a later call, and what its graph reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import FrameType

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.kept_as_given import kept_as_given
from paramgraph_kit.doctor.observe.one_graph import OneGraph
from paramgraph_kit.doctor.observe.own_regions import Region, graphs_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame

OTHER = "is another tensor at this replay, and the graph reads the one of its capture"
_ENTRY = re.compile(r"(\w+)\[('\w+')\]")  # of a dictionary
_REPLAY = re.compile(r"([\w.\[\]'\"]+)\.replay\(\)")


def other_arguments(
    one: OneGraph, frames: Iterable[FrameType], places: Mapping[str, torch.Tensor], written: Iterable[int]
) -> Iterator[tuple[str, str]]:
    """Arguments of functions around a capture that are other tensors in their calls of now; with their names there.

    What an object has is told by the name that it has there.
    """
    known = {*written, 0, *(storage_key(tensor) for text, tensor in places.items() if "." in text)}
    for frame in frames:
        for (code, name), key in one.given.items():
            read, now = one.reads.get(key), frame.f_locals.get(name) if frame.f_code is code else None
            if read is None or key in known or not is_a(now, torch.Tensor):
                continue
            if read[0].expired() or storage_key(now) not in {key, 0}:
                known.add(key)  # its callers have other names for it, which nobody knows there
                yield name, one.called.get(key, name)


def named_again(names: Mapping[str, str], region: Region, replay: Frame | None) -> Failure:
    """What is told of them, with a copy of each that lives with the graph; ``names``: and those at its capture."""
    known = [*names]
    parts = [f"{name} {OTHER}" for name in known]
    parts += [f"{there} of {region.code.co_name} is that" for name, there in names.items() if name != there]
    text = "; ".join(parts)
    kept = kept_with_graph(names, region, replay)
    failure = BY_ID["stale-input"].failure(text, replay)
    return replace(failure, fix=kept) if kept else failure


def kept_with_graph(names: Mapping[str, str], region: Region, replay: Frame | None) -> str:
    """Copies that live with a graph of what a call of its capture was given, filled ahead of its replay.

    Args:
        names: what is given now, and what the function that captures calls that.
        region: the capture.
        replay: the line that replays.
    """
    found, there = _REPLAY.search(replay.text) if replay is not None else None, graphs_at(region)
    if replay is None or found is None or not there:
        return ""
    made, filled, ahead = [], [], list[str]()
    aliased = {each.name: each.line for each in reversed([*kept_as_given(region.code, region.line)])}
    for name, first in names.items():
        own = re.sub(r"\W+", "_", first if _ENTRY.fullmatch(first) else name).strip("_")
        held = f"{there[-1]}.{own}"
        kept, entry = f"{held} = {first}.clone()", _ENTRY.fullmatch(first)
        if line := aliased.get(entry[1] if entry else first):
            cloned = (
                f"{entry[1]} = {{**{entry[1]}, {entry[2]}: {first}.clone()}}" if entry else f"{first} = {first}.clone()"
            )
            ahead.append(f"ahead of line {line} `{cloned}`, ")
            made.append(f"`{held} = {first}`")
        elif entry:
            made.append(f"`{kept}; {entry[1]} = {{**{entry[1]}, {entry[2]}: {held}}}`")
        else:
            made.append(f"`{first} = {kept}`" if first.isidentifier() else f"`{kept}`, which is captured for `{first}`")
        filled.append(f"{found[1]}.{own}.copy_({name})")
    ahead.append(f"ahead of the capture at line {region.line} {', '.join(made)}")
    fix = f"{'; '.join(filled)}; {replay.text}, and {''.join(ahead)}"
    return f"before  {replay.text}\nafter   {fix}"
