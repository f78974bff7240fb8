"""Advice for what tensors of the CPU among the arguments decide: ``x.split(counts.tolist())``."""

from __future__ import annotations

from paramgraph_kit.doctor.observe.other_host_tensors import OTHER_VALUES
from paramgraph_kit.rewrite.source.place import Place


def of_host_tensors(place: Place) -> str:
    """A graph for each of their values."""
    if OTHER_VALUES not in place.failure.message:
        return ""
    names = place.failure.message.rpartition(OTHER_VALUES)[2].rstrip(")").split(", ")
    keys = ", ".join(f"tuple({name}.flatten().tolist())" for name in names)
    several = len(names) > 1
    return (
        f"`{'`, `'.join(names)}`, {'tensors' if several else 'a tensor'} of the CPU among the arguments, "
        f"{'decide' if several else 'decides'} this: the line stays as it is; keep a graph for each value that comes, "
        f"`graphs[{keys}]`, captured when it first comes; where it is always the same, do nothing"
    )
