"""Torch's own functions with the simulated device for ``torch.cuda``: ``make_graphed_callables``, ``save_on_cpu``."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .capture import CUDAGraph
from .capturing import graph, graph_pool_handle, stream, synchronize
from .cuda_device import is_available
from .machine import DEVICE_NAME
from .stream import Stream


class _Torch:
    """What torch's functions mean by ``torch``."""

    cuda = types.SimpleNamespace(
        CUDAGraph=CUDAGraph,
        Stream=Stream,
        graph=graph,
        is_available=is_available,
        stream=stream,
        synchronize=synchronize,
    )
    is_autocast_enabled = staticmethod(partial(torch.is_autocast_enabled, DEVICE_NAME))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _with_our_device(function: Any) -> Callable[..., Any]:
    names = {**function.__globals__, "torch": _Torch(), "graph_pool_handle": graph_pool_handle}
    found = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    found.__doc__ = function.__doc__
    return found


make_graphed_callables = _with_our_device(torch.cuda.make_graphed_callables)


def install_offloading() -> None:
    """``save_on_cpu`` pins what it saves only where there is CUDA."""
    kind: Any = torch.autograd.graph.save_on_cpu
    kind.__init__ = _with_our_device(kind.__init__)
