"""What answers otherwise where there is a GPU: the doctor says that it has not seen what comes of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Tensor = torch.Tensor
DEVICE = driver().device


def asks_for_memory(x: Tensor) -> Tensor:
    return x if torch.cuda.memory_allocated() > 1 << 40 else x + 1


def asks_for_cuda(x: Tensor) -> Tensor:
    return x.nonzero() if x.is_cuda else x + 1


def compares_the_device(x: Tensor) -> Tensor:
    return x.nonzero() if x.device.type == "cuda" else x + 1


def seeds(x: Tensor) -> Tensor:
    torch.cuda.manual_seed(0)
    return F.dropout(x)


def tries_kernels(x: Tensor) -> Tensor:
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return F.conv2d(x[None, None], x[None, None, :2, :2])


def goes_past_torch(x: Tensor) -> Tensor:
    import ctypes

    ctypes.CDLL(None).getpid()
    return x + 1


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (asks_for_memory, "torch.cuda.memory_allocated()"),
        (asks_for_cuda, "is_cuda"),
        (compares_the_device, "names 'cuda'"),
        (seeds, "torch.cuda.manual_seed()"),
        (tries_kernels, "cudnn.flags(benchmark=True)"),
        (goes_past_torch, "it calls ctypes"),
    ],
)
def test_what_a_gpu_answers_otherwise_is_told(function: Callable[[Tensor], Any], named: str) -> None:
    # GIVEN a function that goes on from an answer of a torch that has no CUDA WHEN it is diagnosed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it turns things off
        found = pgk.diagnose(function, torch.eye(4, device=DEVICE))
    # THEN a note says what, and nothing is said of a capture that was not seen
    assert found.codes == ()
    assert any(named in note for note in found.notes), found.notes


def casts_for_cuda(x: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return x @ x


def casts_for_cuda_as_of_old(x: Tensor) -> Tensor:
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        return x @ x


def scales(x: Tensor) -> Tensor:
    return torch.amp.GradScaler("cuda").scale((x @ x).to(torch.bfloat16))


@pytest.mark.parametrize("function", [casts_for_cuda, casts_for_cuda_as_of_old, scales])
def test_autocast_for_cuda_is_the_devices_and_nothing_to_tell(function: Callable[[Tensor], Any]) -> None:
    # GIVEN a function that names CUDA to autocast alone WHEN it is called and diagnosed
    x = torch.eye(4, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.cuda.amp is old
        made = function(x)
        found = pgk.diagnose(function, x)
    # THEN it has done what a GPU does, and there is nothing that was not seen
    assert made.dtype == torch.bfloat16 or made[0, 0].item() == 2.0**16
    assert (found.codes, found.notes) == ((), ())


def chooses_a_device(x: Tensor) -> Tensor:
    return x + torch.ones(4, device="cuda" if torch.cuda.is_available() else "cpu")


def raises_without(x: Tensor) -> Tensor:
    if not torch.cuda.device_count():
        raise RuntimeError("no device")
    return x


def imports_what_cuda_needs(x: Tensor) -> Tensor:
    import flash_attn  # type: ignore[import-not-found]  # noqa: F401

    return x


@pytest.mark.parametrize("function", [chooses_a_device, raises_without, imports_what_cuda_needs])
def test_what_fails_for_want_of_a_gpu_is_no_failure_of_the_function(function: Callable[[Tensor], Any]) -> None:
    # GIVEN a function that fails because of such an answer WHEN it is diagnosed
    found = pgk.diagnose(function, torch.eye(4, device=DEVICE))
    # THEN that is not known, and nobody says that capture is not the reason
    assert found.codes == ("not-simulated",)
    assert "not the reason" not in str(found)


class Net(nn.Module):
    """An ordinary model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()  # type: ignore[no-any-return]


def test_torchs_own_questions_are_none_of_the_users() -> None:
    # GIVEN a training step, in which torch itself asks for CUDA here and there
    net = Net().to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = net(x).float().sum()
        loss.backward()
        optimizer.step()

    # WHEN it is diagnosed THEN no note tells of them, and torch's names are its own again
    before = torch.cuda.is_available, torch.autocast.__init__, torch.Tensor.is_cuda
    found = pgk.diagnose(step, torch.eye(4, device=DEVICE))
    assert not any("GPU" in note for note in found.notes), found.notes
    assert (torch.cuda.is_available, torch.autocast.__init__, torch.Tensor.is_cuda) == before
    twin().recover()
