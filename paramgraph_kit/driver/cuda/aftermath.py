"""What a failed capture has left wrong in this process, and putting it right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from cuda.bindings import driver as cu

from paramgraph_kit.driver.cuda.forks import known_streams
from paramgraph_kit.driver.cuda.recover import _end_failed_captures, _is_idle, _seen_idle, wake_solver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import UnsupportedError

# Errors after which CUDA refuses every further call of the process.
LOST = (700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999)
_POISONED = "Offset increment outside graph capture"


def left_behind(device: int, suspects: Sequence[Any]) -> tuple[str, ...]:
    """What is wrong now, in words; ``suspects`` are streams that have captured and should not be current any more."""
    lost = _lost(device)
    if lost:
        return (f"the CUDA context is lost ({lost}): restart the kernel, nothing else helps",)
    capturing, invalid = _capturing(device, suspects)
    if capturing:
        return ("a capture is still under way",)
    found = ["a spoiled capture was never ended"] if invalid else []
    if _is_suspect(torch.cuda.current_stream(device), suspects):
        found.append("the current stream is still the one that captured")
    if not invalid and _generator_is_poisoned(device):
        found.append("the random generator still believes in the capture")
    # Where the allocator was never seen idle, nobody knows what idle looks like there.
    if not invalid and not _is_idle(device) and device in _seen_idle:
        found.append("the allocator still waits for the end of the capture")
    return tuple(found)


def repair(device: int, side: torch.cuda.Stream, suspects: Sequence[Any], error: BaseException | None) -> None:
    """Put right what ``left_behind`` tells, and the library that the capture's ``error`` came from.

    Raises:
        UnsupportedError: only a new process can, or a capture really is under way.
    """
    lost = _lost(device)
    if lost:
        raise UnsupportedError(f"the CUDA context is lost ({lost}): restart the kernel, nothing else helps")
    capturing, invalid = _capturing(device, suspects)
    for stream in (*invalid, *(s for s in capturing if _is_suspect(s, suspects))):
        _, graph = cu.cuStreamEndCapture(cu.CUstream(stream.cuda_stream))
        if graph is not None and int(graph):
            cu.cuGraphDestroy(graph)
    if any(not _is_suspect(s, suspects) for s in capturing):
        raise UnsupportedError("another capture is under way: end it, then repair")
    if _is_suspect(torch.cuda.current_stream(device), suspects):
        torch.cuda.set_stream(torch.cuda.default_stream(device))
    _end_failed_captures(device, side)
    if _generator_is_poisoned(device):  # a capture that draws and ends well gives the generator back
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            torch.rand(1, device=f"cuda:{device}")
            graph.capture_end()
    left = left_behind(device, suspects)
    # The allocator is also busy in somebody's use_mem_pool, and then this is no reason to complain.
    if any(word in text for text in left for word in ("stream", "generator", "spoiled")):
        raise UnsupportedError(f"{'; '.join(left)}: this could not be put right, restart the kernel")
    wake_solver(device, error)


def _lost(device: int) -> str:
    error, _ = cu.cuStreamIsCapturing(cu.CUstream(torch_name("_cuda_getCurrentRawStream")(device)))
    if int(error) in LOST:
        return f"error {int(error)}, {cu.cuGetErrorString(error)[1].decode()}"
    return ""


def _is_suspect(stream: Any, suspects: Sequence[Any]) -> bool:
    own = torch.cuda.graph.default_capture_stream
    known = [*suspects, *([own] if own is not None else [])]
    return stream.cuda_stream != 0 and any(stream.cuda_stream == one.cuda_stream for one in known)


def _capturing(device: int, suspects: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Streams in an active capture, and streams in a spoiled one."""
    status = cu.CUstreamCaptureStatus
    streams = {s.cuda_stream: s for s in suspects}
    for stream in known_streams(device):
        streams.setdefault(stream.cuda_stream, stream)
    now = torch.cuda.current_stream(device)
    streams.setdefault(now.cuda_stream, now)
    found: dict[Any, list[Any]] = {
        status.CU_STREAM_CAPTURE_STATUS_ACTIVE: [],
        status.CU_STREAM_CAPTURE_STATUS_INVALIDATED: [],
    }
    for stream in streams.values():
        _, state = cu.cuStreamIsCapturing(cu.CUstream(stream.cuda_stream))
        if state in found:
            found[state].append(stream)
    return found[status.CU_STREAM_CAPTURE_STATUS_ACTIVE], found[status.CU_STREAM_CAPTURE_STATUS_INVALIDATED]


def _generator_is_poisoned(device: int) -> bool:
    generator = torch.cuda.default_generators[device]
    state = generator.get_state()
    try:
        torch.rand(1, device=f"cuda:{device}")
    except RuntimeError as error:
        if _POISONED in str(error):
            return True
        raise
    generator.set_state(state)
    return False
