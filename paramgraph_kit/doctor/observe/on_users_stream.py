"""What fails where a program that captures for itself warms up on the user's own stream, and not on one of ours."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from paramgraph_kit.doctor.observe.one_call import Caller
from paramgraph_kit.trace.model import Failure


def problems(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], limit_s: float
) -> list[Failure]:
    """The capture that cannot be made there, if so: a gradient accumulates where the warm-up has accumulated it."""
    gc.collect()  # what accumulates gradients on a stream of ours goes with the calls that have made it
    caller = Caller(function, args, kwargs, limit_s)
    caller.number = 1  # what it prints was seen when the first was made
    try:
        ended = caller.call(args, kwargs, plainly=True).ended
    finally:
        caller.put_back()
    return [ended] if ended is not None and ended.code == "legacy-stream" else []
