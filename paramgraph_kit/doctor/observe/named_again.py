"""Variables of a function that captures and replays: what they mean in a later call, and what its graph reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.own_regions import Region, graphs_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame

OTHER = "is another tensor at this replay, and the graph reads the one of its capture"
_REPLAY = re.compile(r"([\w.\[\]'\"]+)\.replay\(\)")


def others_now(
    places: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor], written: Iterable[int]
) -> Iterator[str]:
    """The variables whose tensor is another one, while nothing was written to that which the graph reads.

    Args:
        places: what the graph reads, as the lines of its capture write it.
        now: what these mean in the call that replays.
        written: memory to which something was written, ever.
    """
    known = {*written, 0}
    for text, tensor in places.items():
        other, key = now.get(text), storage_key(tensor)
        if other is None or key in known or storage_key(other) in {key, 0}:
            continue
        if (other.shape, other.dtype, other.device) == (tensor.shape, tensor.dtype, tensor.device):
            yield text


def named_again(names: Iterable[str], region: Region, replay: Frame | None) -> Failure:
    """What is told of them, with a copy of each that lives with the graph."""
    known = [*names]
    text = "; ".join(f"{name} {OTHER}" for name in known)
    found = _REPLAY.search(replay.text) if replay is not None else None
    there = graphs_at(region)
    if replay is None or found is None or not there:
        return BY_ID["stale-input"].failure(text, replay)
    made, filled = [], []
    for name in known:
        own = re.sub(r"\W+", "_", name).strip("_")
        kept = f"{there[-1]}.{own} = {name}.clone()"
        made.append(f"`{name} = {kept}`" if name == own else f"`{kept}`, which is captured for `{name}`")
        filled.append(f"{found[1]}.{own}.copy_({name})")
    fix = f"{'; '.join(filled)}; {replay.text}, and ahead of the capture at line {region.line} {', '.join(made)}"
    return replace(BY_ID["stale-input"].failure(text, replay), fix=f"before  {replay.text}\nafter   {fix}")
