"""Bringing the caching allocator back after somebody else's failed capture.

A failed ``torch.cuda.graph`` leaves the allocator believing that its capture is still under way. It then defers
frees, and giving a pool back aborts the process. So before a capture of ours the allocator is asked, and what was
left behind is ended.
"""

from __future__ import annotations

import torch

from paramgraph_kit.driver.cuda.forks import captures, known_streams
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import RefusedError, cause_chain
from paramgraph_kit.trace.model import Reason

_seen_idle: set[int] = set()  # devices on which the allocator was seen idle: only then does "busy" mean something


def settle(device: int, stream: torch.cuda.Stream) -> None:
    """Make sure that no capture is under way, ending what failed ones left; raises RefusedError if one really is."""
    if torch.cuda.is_current_stream_capturing() or _any_stream_captures(device):
        raise _busy()
    if _is_idle(device):
        return
    ended = _end_failed_captures(device, stream)
    if ended and _is_idle(device):
        return
    if ended or device in _seen_idle:
        raise _busy()


def wake_solver(device: int, error: BaseException | None) -> None:
    """After cuSOLVER's ``error`` in a capture, its next call fails, too: let that be one of ours [H100, torch 2.11]."""
    if error is None or not any("cusolver" in str(each).lower() for each in cause_chain(error)):
        return
    for _ in range(3):
        try:
            torch.linalg.eigh(torch.eye(2, device=f"cuda:{device}"))
            return
        except RuntimeError:
            continue


def _busy() -> RefusedError:
    text = "another capture or memory-pool context is open: this call runs ungraphed, a later one may capture"
    return RefusedError(Reason("capture-under-way", text))


def _is_idle(device: int) -> bool:
    """Whether emptying the cache waits for the device, which the allocator leaves out while a capture is under way."""
    count = torch.cuda.memory_stats(device).get("num_sync_all_streams", 0)
    try:
        torch.cuda.empty_cache()
    except RuntimeError:  # some versions of torch refuse instead
        return False
    idle = bool(torch.cuda.memory_stats(device).get("num_sync_all_streams", 0) != count)
    if idle:
        _seen_idle.add(device)
    return idle


def _any_stream_captures(device: int) -> bool:
    return any(captures(stream.cuda_stream) for stream in known_streams(device))


def _end_failed_captures(device: int, stream: torch.cuda.Stream) -> int:
    """End every capture that the allocator still waits for; returns how many there were.

    Captures number their pools (1, 0), (2, 0), ...; one more capture tells how far they have come.
    """
    probe = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        probe.capture_begin(capture_error_mode="thread_local")
        torch_name("_sleep")(1)  # an empty graph would warn
        probe.capture_end()
    newest = int(probe.pool()[0])
    ended = 0
    for number in range(1, newest):
        try:
            torch_name("_cuda_endAllocateToPool")(device, (number, 0))
        except RuntimeError:
            continue  # not under way
        torch_name("_cuda_releasePool")(device, (number, 0))  # the failed graph will never do it
        ended += 1
    return ended
