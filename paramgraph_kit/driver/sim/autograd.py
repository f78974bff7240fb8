"""Which stream a backward belongs to.

CUDA's engine runs every backward node on the stream of its forward operation. Here a log of (sequence number, stream)
per thread answers that, so that a capture notices, as on the device, that a graph made on the default stream is about
to be walked inside it (error 906).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from paramgraph_kit.driver.torch_names import torch_name

from .stream import Capture, Stream, current_stream, default_stream, stream_log

task_id: Callable[[], int] = torch_name("_current_graph_task_id")
_current_node: Callable[[], Any] = torch_name("_current_autograd_node")
_TAG = "paramgraph_kit sim stream"
_task = -1  # the graph task that was looked at last


def backward_starts(capture: Capture | None) -> None:
    """Look at a backward that a kernel has just been called from, once for each.

    Raises:
        torch.AcceleratorError: code 906, in a capture, for a graph made on the default stream.
    """
    global _task
    task = task_id()
    if task == _task:
        return
    _task = task
    node = _current_node()
    if node is None:
        return
    seen = {node}
    todo: list[Any] = [node]
    while todo:
        node = todo.pop()
        if capture is None:
            if node.name() == "torch::autograd::AccumulateGrad":
                node.metadata.setdefault(_TAG, current_stream().cuda_stream)
        elif _stream_of(node) == default_stream().cuda_stream:
            raise capture.fail(906)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


def _stream_of(node: Any) -> int | None:
    if node.name() == "torch::autograd::AccumulateGrad":
        number: int | None = node.metadata.get(_TAG)
        return number
    log: list[tuple[int, Stream]] = stream_log()
    i = bisect_right(log, node._sequence_nr(), key=lambda entry: entry[0])
    return log[i - 1][1].cuda_stream if i else default_stream().cuda_stream
