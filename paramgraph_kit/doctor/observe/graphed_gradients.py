"""Gradients that are the memory of a callable that torch has graphed: its next backward pass writes over them first.

Where a parameter has no gradient, autograd gives it the very tensor that the graph writes. The next replay writes there
again, and then autograd adds that tensor to itself: twice the latest gradient stands where a sum should [H200].
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.learning import ZEROS, learning
from paramgraph_kit.doctor.observe.own_regions import GRAPHED
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.trace.model import Failure

_TITLE = "Gradients of a graphed callable are written over"
_TEXT = "p.grad is the graph's own tensor here: the replay writes over it, and then it is added to itself"
_CAUSE = (
    "Where p.grad is None, autograd gives it the tensor that the graph of the backward pass writes. The next replay "
    "writes to that tensor before autograd adds to it."
)


class GraphedGradients:
    """Those of one program."""

    def __init__(self) -> None:
        self._learning: dict[int, list[Any]] = {}  # by graph: weak references to what may have gradients
        self._told: dict[tuple[CodeType, int], Failure] = {}

    def launched(self, graph: object, writes: Callable[[torch.Tensor], bool], place: Place) -> None:
        """A graph of torch's is replayed; ``writes``: whether memory is its own."""
        if (known := self._learning.get(id(graph))) is None:
            known = self._learning[id(graph)] = [weakref.ref(each) for each in learning()]
        grads = (p.grad for ref in known if (p := ref()) is not None and p.grad is not None)
        if (user := place.user) is not None and any(map(writes, grads)):
            self._told.setdefault((user[0], line_of(*user)), _failure(place, user[0]))

    def failures(self) -> Iterator[Failure]:
        """All that was seen."""
        yield from self._told.values()


def _failure(place: Place, code: CodeType) -> Failure:
    failure = BY_ID["gradients-accumulate"].failure(_TEXT, place.frame())
    tree = tree_of(code.co_filename)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree is not None else []
    given = [n.args[0] for n in calls if last_name(n.func) == GRAPHED and n.args]
    name = ast.unparse(given[0]) if len(given) == 1 and isinstance(given[0], (ast.Name, ast.Attribute)) else "module"
    line = failure.frame.text if failure.frame is not None else "loss.backward()"
    zeros = f"`for p in {name}.parameters(): p.grad = {ZEROS}`"
    after = (
        f"the same, and once behind `{GRAPHED}(...)`: {zeros}; each `zero_grad()` is `zero_grad(set_to_none=False)`: "
        "autograd adds to these tensors, which no graph writes"
    )
    return replace(failure, title=_TITLE, cause=_CAUSE, fix=f"before  {line}\nafter   {after}")
