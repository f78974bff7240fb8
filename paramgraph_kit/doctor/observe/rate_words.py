"""How an optimizer is made whose rate a graph reads anew at each replay."""

from __future__ import annotations

from typing import Any

import torch

_TAKES_TENSORS = "fused=True for SGD, which waits for it otherwise, capturable=True for others"


def rate_in_a_tensor(kind: str, optimizer: Any = None) -> str:
    """What the optimizer's own line has then: its own rate, and what its class takes a tensor with, where known."""
    defaults = optimizer.defaults if isinstance(optimizer, torch.optim.Optimizer) else {}
    rate, takes = defaults.get("lr"), _TAKES_TENSORS
    if "capturable" in defaults:
        takes = "capturable=True"
    elif type(optimizer) is torch.optim.SGD:
        takes = "fused=True: it waits for the rate otherwise"
    own = repr(rate) if type(rate) is float and len(optimizer.param_groups) == 1 else "..."
    return f"lr=torch.tensor({own}, device={kind!r}) where the optimizer is made, and {takes}"


def rate_where_read(line: str, kind: str, optimizer: torch.optim.Optimizer) -> str:
    """What is told at the line that reads the rate, where none is known to give it."""
    made = rate_in_a_tensor(kind, optimizer)
    return f"{line}, with {made}; what gives the next rate, as a scheduler's step(), stands behind g.replay()"
