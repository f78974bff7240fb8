"""The twin of ``torch.cuda.make_graphed_callables``: torch's own, with the simulated device for ``torch.cuda``."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .capture import CUDAGraph
from .capturing import graph, graph_pool_handle, stream, synchronize
from .machine import DEVICE_NAME
from .stream import Stream


class _Torch:
    """What torch's function means by ``torch``."""

    cuda = types.SimpleNamespace(
        CUDAGraph=CUDAGraph, Stream=Stream, graph=graph, stream=stream, synchronize=synchronize
    )
    is_autocast_enabled = staticmethod(partial(torch.is_autocast_enabled, DEVICE_NAME))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _with_our_device(function: Any) -> Callable[..., Any]:
    names = {**function.__globals__, "torch": _Torch(), "graph_pool_handle": graph_pool_handle}
    found = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    found.__kwdefaults__ = function.__kwdefaults__
    found.__doc__ = function.__doc__
    return found


make_graphed_callables = _with_our_device(torch.cuda.make_graphed_callables)
