"""Results of what ``make_graphed_callables`` has made: each call writes over those of the call before."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.places import Place, call_at
from paramgraph_kit.trace.model import Failure

_MOST = 4096  # results that are followed
_BACKWARD = "the backward pass of this call runs behind another call, whose numbers the graph has by then"
READ = "this result is read behind another call of the same graph, which has written to its memory"


@dataclass(frozen=True, slots=True)
class _Given:
    """A result, or a view of one: of which call of a graph it is."""

    tensor: weakref.ref[torch.Tensor]
    graph: int
    call: int


@dataclass(slots=True)
class _Calls:
    """The calls of one callable."""

    places: list[Place] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)  # how many tensors each has given
    forward: int = 0  # calls one after the other
    backward: int = 0  # and then backward passes


class GraphedResults:
    """Those of one examination."""

    def __init__(self) -> None:
        self._calls: dict[int, _Calls] = {}
        self._given: dict[int, _Given] = {}
        self._forward: dict[int, int] = {}  # by the graph of a backward pass, that of its forward pass
        self._now = 0  # the graph that was launched last

    def belong(self, forward: object, backward: object) -> None:
        """Two graphs are of one callable."""
        self._forward[id(backward)] = id(forward)

    def launched(self, graph: object, place: Place) -> Iterator[Failure]:
        """One of their graphs is replayed."""
        forward = self._forward.get(id(graph), id(graph))
        calls = self._calls.setdefault(forward, _Calls())
        if forward == id(graph):
            calls.forward, calls.backward = 1 if calls.backward else calls.forward + 1, 0
            calls.places.append(place)
            calls.parts.append(0)
            self._now = forward
        else:
            calls.backward += 1
            if 1 < calls.backward <= calls.forward:  # that of the last call comes first
                yield _failure(calls.places[-calls.backward], _BACKWARD, in_one=True)

    def saw(self, name: str, given: list[torch.Tensor], result: Any, of_torch: bool) -> None:
        """A view is made: of what a graph has written, by torch for who has called, or by the user of that."""
        if not isinstance(result, torch.Tensor) or len(self._given) > _MOST:
            return
        if of_torch and name == "detach" and (calls := self._calls.get(self._now)) is not None and not calls.backward:
            calls.parts[-1] += 1
            self._given[id(result)] = _Given(weakref.ref(result), self._now, len(calls.places))
        elif given and (known := self._of(given[0])) is not None:
            self._given[id(result)] = replace(known, tensor=weakref.ref(result))

    def read(self, tensors: Iterable[torch.Tensor]) -> Iterator[Failure]:
        """Tensors are read, or given to who has called."""
        for tensor in tensors if self._given else ():
            if (known := self._of(tensor)) is not None and known.call < len(self._calls[known.graph].places):
                calls = self._calls[known.graph]
                is_one = calls.parts[known.call - 1] == 1
                yield _failure(calls.places[known.call - 1], READ, is_one=is_one)

    def _of(self, tensor: torch.Tensor) -> _Given | None:
        known = self._given.get(id(tensor))
        return known if known is not None and known.tensor() is tensor else None


def _failure(place: Place, text: str, is_one: bool = True, in_one: bool = False) -> Failure:
    failure = BY_ID["output-alias"].failure(text, place.frame())
    call = call_at(*place.user) if place.user is not None else None
    if call is None:
        return failure
    line = ast.unparse(call)
    if in_one:
        name = ast.unparse(call.func)
        words = (  # torch.cat of both is another thing to a batch normalization
            f"one call for both: a module whose forward has what `{name}` was made of for each, `return module(a), "
            "module(b)`, graphed with a sample of each; or the backward() of each ahead of the next call, into "
            "gradients that were there before (`p.grad = torch.zeros_like(p)` once, then "
            "`zero_grad(set_to_none=False)`): one that the graph has given is its own memory"
        )
    else:
        words = f"{line}.clone()" if is_one else f"clone() of each tensor that {line} gives, ahead of the next call"
    return replace(failure, fix=f"before  {line}\nafter   {words}")
