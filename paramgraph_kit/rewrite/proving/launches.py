"""A function that a loop of the user's calls, run from graphs: one for each layout of what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.doctor.restore.repair import capture
from paramgraph_kit.driver.select import twin
from paramgraph_kit.rewrite.proving.proof import NOTHING, WARM_UP, Arguments, Around, held

Layout = tuple[tuple[torch.Size, torch.dtype, tuple[int, ...]], ...]


def layout(values: Any) -> Layout:
    """The shapes, types and strides of all tensors of some arguments."""
    return tuple((x.shape, x.dtype, x.stride()) for x in tree_leaves(values) if isinstance(x, torch.Tensor))


@dataclass(slots=True)
class _Graph:
    graph: Any
    given: Arguments
    out: Any


class Launches:
    """Calls a function, and from the third call with one layout on replays a graph of it.

    Raises:
        CaptureError: the capture fails.
    """

    def __init__(self, function: Any, around: Around = NOTHING) -> None:
        self._function, self._around = function, around
        self._calls: dict[Layout, int] = {}
        self._graphs: dict[Layout, _Graph] = {}
        self.replays = 0

    def __call__(self, *given: Any) -> Any:
        """Call it, or replay the graph of such arguments."""
        at = layout(given)
        self._calls[at] = self._calls.get(at, 0) + 1
        if self._calls[at] <= WARM_UP:
            return self._eager((given, {}))
        if at not in self._graphs:
            self._graphs[at] = self._captured((given, {}))
        one = self._graphs[at]
        with torch.no_grad():
            for static, value in zip(tree_leaves(one.given), tree_leaves((given, {})), strict=True):
                if isinstance(static, torch.Tensor):
                    static.copy_(value)
        self._around.prepare(one.given)
        one.graph.replay()
        self.replays += 1
        return tree_map(_own, self._around.finish(one.given, one.out))

    def _eager(self, inputs: Arguments) -> Any:
        cuda = twin()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self._around.prepare(inputs)
            out = self._around.finish(inputs, self._function(*inputs[0]))
        cuda.current_stream().wait_stream(side)
        return out

    def _captured(self, inputs: Arguments) -> _Graph:
        graph = twin().CUDAGraph()
        static = tree_map(held, inputs)
        with capture(graph):
            out = self._function(*static[0])
        return _Graph(graph, static, out)


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
