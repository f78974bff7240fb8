"""Numbers that constructors read from the device out of sight of modes: ``torch.tensor([x[0], x[1]])``.

They ask each entry for its number (``__index__``, ``__float__``) with the keys of modes taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_mode

from paramgraph_kit.doctor.observe.observer import Observer
from paramgraph_kit.doctor.observe.refusals import UNCAPTURED
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import driver

UNSEEN = "a constructor reads each entry of its list on the host"  # in a message
_ASKING = ("__index__", "__int__", "__float__", "__complex__", "__bool__")


@contextmanager
def unseen_told(observer: Observer, mine: Callable[[], bool]) -> Iterator[None]:
    """Tell ``observer`` of what is read so while ``mine`` is true."""

    def asked(function: Any) -> Any:
        def call(tensor: Any) -> Any:
            before = len(observer.steps)
            value = function(tensor)
            seen = len(observer.steps) > before
            # Where modes are off, as while a tensor is shown, it is told otherwise.
            unseen = not seen and current_mode() is not None and mine()
            return _told(observer, tensor, value) if unseen else value

        return call

    with ExitStack() as stack:
        for name in _ASKING:
            stack.enter_context(replaced(torch.Tensor, name, asked))
        yield


def _told(observer: Observer, tensor: torch.Tensor, value: Any) -> Any:
    """A number was read, and no operation was seen in it; what is read instead."""
    target = driver()
    if tensor.device.type != target.device.type or target.is_capturing() or observer.makes_graph:
        return value
    place = observer.places.here()
    what = f"{UNSEEN}, of {str(tensor.dtype).removeprefix('torch.')}"
    observer.findings.refused(UNCAPTURED, 900, "item", place, what, sure=True)
    observer.findings.read_by_entry.add(place.frame())
    observer.unordered.order.host_waits(stream=target.current_stream())
    return observer.readings(value, place) if observer.readings is not None else value
