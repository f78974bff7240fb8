"""Graphs that a function captures and replays itself: what they read has to live, what it is given has to arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_weak: Any = StorageWeakRef  # torch leaves it untyped


@dataclass(slots=True)
class _Own:
    """One graph, as its capture was seen."""

    graph: object  # whose id stays its own so
    reads: dict[int, tuple[Any, Place]] = field(default_factory=dict)  # memory from outside of the capture
    made: set[int] = field(default_factory=set)


class OwnGraphs:
    """All of them that were captured in one examination."""

    def __init__(self) -> None:
        self._known: dict[int, _Own] = {}
        self._open: _Own | None = None

    def __bool__(self) -> bool:
        return bool(self._known)

    def __contains__(self, graph: object) -> bool:
        return id(graph) in self._known

    def begin(self, graph: object) -> None:
        """The capture of a graph begins; what is captured from now on is its own."""
        self._open = self._known[id(graph)] = _Own(graph)

    def saw(self, device: str, given: list[torch.Tensor], result: Any, place: Place) -> None:
        """An operation was captured."""
        if (own := self._open) is None:
            return
        keys = set[int]()
        for tensor in given:
            keys.add(key := storage_key(tensor))
            if tensor.device.type == device and key and key not in own.made and key not in own.reads:
                own.reads[key] = (_weak(tensor.untyped_storage()), place)
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, torch.Tensor) and (key := storage_key(tensor)) not in keys:
                own.made.add(key)

    def lost(self, graph: object) -> Iterator[Failure]:
        """Lines of a graph that is replayed now whose tensors are gone."""
        own = self._known.get(id(graph))
        gone = [place for ref, place in own.reads.values() if ref.expired()] if own is not None else []
        for place in gone:
            text = "the graph is replayed, and a tensor that it reads here is gone: nothing has kept it"
            yield BY_ID["freed-input"].failure(text, place.frame())

    def never_read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], first: set[int], later: set[int], at: Place
    ) -> list[Failure]:
        """Arguments that the call with the capture has read, and that later calls, which only replay, have not."""
        taken = first.union(*(own.reads for own in self._known.values()))
        named = [(f"argument {i + 1}", value) for i, value in enumerate(args)] + list(kwargs.items())
        ignored = [
            name
            for name, value in named
            if any(isinstance(t, torch.Tensor) and storage_key(t) in taken - later - {0} for t in tree_leaves(value))
        ]
        text = f"{', '.join(ignored)}: this call does not read it, and the graph has what was there at its capture"
        return [BY_ID["stale-input"].failure(text, at.frame())] if ignored else []

    def owns(self, result: Any) -> bool:
        """Whether something in a result is memory that a graph writes."""
        made = set[int]().union(*(own.made for own in self._known.values()))
        return any(isinstance(each, torch.Tensor) and storage_key(each) in made for each in tree_leaves(result))
