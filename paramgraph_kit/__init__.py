"""CUDA graphs without the pain: parameterized launch, diagnosis and pictures, on a GPU or on a simulator of one.

model = torch.compile(model, backend="paramgraph")
y = model(x)
print(paramgraph_kit.report(model))
"""

from __future__ import annotations

from typing import Any

from paramgraph_kit._version import __version__ as __version__
from paramgraph_kit.recordings import recorded as recorded
from paramgraph_kit.trace.errors import CaptureError as CaptureError
from paramgraph_kit.trace.errors import DeviceMismatchError as DeviceMismatchError
from paramgraph_kit.trace.errors import DriverCallError as DriverCallError
from paramgraph_kit.trace.errors import ParamgraphError as ParamgraphError
from paramgraph_kit.trace.errors import PromiseError as PromiseError
from paramgraph_kit.trace.errors import RefusedError as RefusedError
from paramgraph_kit.trace.errors import TourError as TourError
from paramgraph_kit.trace.errors import TraceError as TraceError
from paramgraph_kit.trace.errors import UnsupportedError as UnsupportedError
from paramgraph_kit.verbs import compile as compile
from paramgraph_kit.verbs import device as device
from paramgraph_kit.verbs import diagnose as diagnose
from paramgraph_kit.verbs import explore as explore
from paramgraph_kit.verbs import load as load
from paramgraph_kit.verbs import parameterize as parameterize
from paramgraph_kit.verbs import report as report
from paramgraph_kit.verbs import save as save
from paramgraph_kit.verbs import watch as watch
from paramgraph_kit.verbs._story import story as story

__all__ = [
    "CaptureError",
    "DeviceMismatchError",
    "DriverCallError",
    "ParamgraphError",
    "PromiseError",
    "RefusedError",
    "TourError",
    "TraceError",
    "UnsupportedError",
    "compile",
    "cuda",
    "device",
    "diagnose",
    "explore",
    "load",
    "parameterize",
    "recorded",
    "report",
    "save",
    "story",
    "watch",
]


def __getattr__(name: str) -> Any:
    # ``cuda`` is torch.cuda or its simulated twin: found out when first asked, so that import stays free of torch.
    if name == "cuda":
        from paramgraph_kit.driver.select import twin

        return twin()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext paramgraph_kit``: adds ``%paramgraph`` and ``%%paramgraph``; ``%paramgraph?`` is their help."""
    from paramgraph_kit.verbs import _magic

    _magic.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext paramgraph_kit``: takes both out again, with the trace that they keep."""
    from paramgraph_kit.verbs import _magic

    _magic.unload(ipython)
