"""A function that a loop of the user's calls, run from graphs: one for each layout of what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.restore.repair import capture
from paramgraph_kit.driver.select import twin
from paramgraph_kit.rewrite.proving.exchanged import HostDraws
from paramgraph_kit.rewrite.proving.printed import capturing
from paramgraph_kit.rewrite.proving.proof import NOTHING, WARM_UP, Arguments, Around
from paramgraph_kit.rewrite.proving.registered import register
from paramgraph_kit.rewrite.proving.results import held
from paramgraph_kit.rewrite.source.given import Given

Layout = tuple[tuple[torch.Size, torch.dtype, tuple[int, ...]], ...]
Kind = tuple[Layout, tuple[Any, ...]]


def layout(values: Any) -> Layout:
    """The shapes, types and strides of all tensors of some arguments."""
    return tuple((x.shape, x.dtype, x.stride()) for x in tree_leaves(values) if isinstance(x, torch.Tensor))


def kind_of(values: Any) -> Kind:
    """The same, and what all else is: numbers and texts themselves, objects by where they are."""
    plain = (x for x in tree_leaves(values) if not isinstance(x, torch.Tensor))
    return layout(values), tuple(x if isinstance(x, (bool, int, float, str)) else (id(x),) for x in plain)


@dataclass(slots=True)
class _Graph:
    graph: Any
    given: Arguments
    out: Any


class Launches:
    """Calls a function, and from the third call with arguments of one kind on replays a graph of it.

    ``anew``: attributes of what it binds that may be other objects in a later call: each has a graph of its own.
    ``handed``: whether its results are the graph's own memory, as whoever launches it may hand them on.
    ``warm_up``: so many calls of one kind run as they are before it is captured, where few steps come to it.

    Raises:
        CaptureError: the capture fails.
    """

    def __init__(
        self,
        function: Any,
        around: Around = NOTHING,
        bound: int = 0,
        anew: Sequence[str] = (),
        *,
        handed: bool = False,
        warm_up: int = WARM_UP,
    ) -> None:
        self._function, self._around, self._anew, self._handed = function, around, anew, handed
        self._bound = bound  # of the arguments so many are no tensors, and what is around a launch needs them, too
        self._calls: dict[Kind, int] = {}
        self._graphs: dict[Kind, _Graph] = {}
        self._given: list[Any] = []  # objects stay, so that no other one comes to lie there
        self._warm_up = warm_up
        self.replays = 0

    @property
    def most(self) -> int:
        """How often it was called with arguments of one kind."""
        return max(self._calls.values(), default=0)

    def __call__(self, *given: Any) -> Any:
        """Call it, or replay the graph of such arguments."""
        made = [getattr(each, name, None) for each in given[: self._bound] for name in self._anew]
        at = kind_of((given, made))
        self._given += [(given, made)] if at not in self._calls else []
        self._calls[at] = self._calls.get(at, 0) + 1
        if self._calls[at] <= self._warm_up:
            return self._eager((given, {}))
        if at not in self._graphs:
            self._graphs[at] = self._captured((given, {}))
        one = self._graphs[at]
        with torch.no_grad():
            for static, value in zip(tree_leaves(one.given), tree_leaves((given, {})), strict=True):
                if isinstance(static, torch.Tensor):
                    static.copy_(value)
        self._around.prepare(self._own(one.given))
        one.graph.replay()
        self.replays += 1
        out = self._around.finish(self._own(one.given), one.out)
        return out if self._handed else tree_map(_apart, out)

    def _eager(self, inputs: Arguments) -> Any:
        cuda = twin()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self._around.prepare(self._own(inputs))
            out = self._around.finish(self._own(inputs), self._function(*inputs[0]))
        cuda.current_stream().wait_stream(side)
        return out

    def _own(self, inputs: Arguments) -> Arguments:
        return Given(inputs[0]) if self._bound else inputs[0], inputs[1]

    def _captured(self, inputs: Arguments) -> _Graph:
        graph = twin().CUDAGraph()
        static = tree_map(held, inputs)
        drawn = HostDraws()
        register(graph, HostState(self._function, inputs[0], {}).generators)
        with capturing(), capture(graph):
            out = self._function(*static[0])
        drawn.check()
        return _Graph(graph, static, out)


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def plainly(made: Callable[..., Any], around: Around, bound: int, _: Sequence[str] = ()) -> Callable[..., Any]:
    """A round with what goes around its launches, and no launch; ``inspect.unwrap`` gives it bare."""

    @wraps(made, updated=())
    def one(*given: Any) -> Any:
        inputs: Arguments = (Given(given) if bound else given, {})
        around.prepare(inputs)
        return around.finish(inputs, made(*given))

    return one
