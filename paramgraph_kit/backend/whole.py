"""Operations that torch's tracing takes apart in a way of its own, kept as eager has them.

In eval mode eager's dropout gives back the very tensor that it was given, so that a write to one is a write to the
other; the trace's makes a copy. What some others compute instead of their one kernel differs in its last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

# The recurrent ones stay apart, and so does what reads values on the host or writes running statistics in C++.
_WHOLE = (
    "dropout",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_trilinear3d",
)


@contextmanager
def kept_whole() -> Iterator[None]:
    """Trace these as eager runs them; who compiles in another thread meanwhile gets eager's kernels for them, too."""
    packets = [getattr(torch.ops.aten, name) for name in _WHOLE]
    found = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    with ExitStack() as stack:
        for operation in found:
            stack.enter_context(mock.patch.dict(operation.py_kernels, clear=True))
            stack.enter_context(mock.patch.dict(operation._dispatch_cache, clear=True))
        yield
