"""The twin's streams and events for Dynamo: what it knows of ``torch.cuda`` by name, it is told of the twin."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import carries_streams, torch_name


@cache
def teach_dynamo() -> None:
    """Let a compiled function enter the twin's streams, order them and record events without a graph break.

    Where torch's graphs do not carry streams (2.11) it breaks there, and each stream is entered by Python itself.
    """
    if not carries_streams():
        return
    from . import cuda_twin

    for name in ("current_stream", "stream"):
        ours = getattr(cuda_twin, name)
        torch.compiler.allow_in_graph(ours)  # type: ignore[no-untyped-call]
        handlers = torch_name("_get_handlers")()
        handlers[ours] = handlers[getattr(torch.cuda, name)]
    torch_name("_in_graph_classes")().update({cuda_twin.Stream, cuda_twin.Event})
    # Nothing is outstanding here: an event that torch refuses behind a write to an input has happened.
    torch_name("OutputGraph").check_event_record_after_input_mutation = lambda *_: None
    # What a function makes inside is made again at each call, by these names, and the current stream found.
    utils: Any = sys.modules["torch._dynamo.utils"]
    utils.get_current_stream = cuda_twin.current_stream
    utils.build_stream = lambda args, kwargs: cuda_twin.Stream(*args, **kwargs)
    utils.build_event = lambda args, kwargs: cuda_twin.Event(*args, **kwargs)
