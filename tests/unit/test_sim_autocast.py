"""``"cuda"`` said to autocast, its functions and its decorators on the simulated device, as on a card."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.select import device

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning", "ignore:.*is deprecated:DeprecationWarning"),
]
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("region", "kind"),
    [
        (lambda: torch.autocast("cuda"), HALF),
        (lambda: torch.autocast(device_type="cuda", dtype=BFLOAT16), BFLOAT16),
        (lambda: torch.amp.autocast("cuda", BFLOAT16, True, False), BFLOAT16),
        (lambda: torch.cuda.amp.autocast(), HALF),
        (lambda: torch.autocast("cuda", enabled=False), FLOAT),
        (lambda: torch.autocast("cuda", dtype=FLOAT), FLOAT),
        (lambda: torch.autocast(device().type, BFLOAT16), BFLOAT16),
    ],
)
def test_a_region_for_cuda_casts_for_the_device(region: Callable[[], Any], kind: torch.dtype) -> None:
    # GIVEN matrices of the device and of the host WHEN they are multiplied in a region for CUDA
    x, host = torch.ones(2, 2, device=device()), torch.ones(2, 2)
    with region():
        inside = torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        made, of_host = x @ x, host @ host
    # THEN the device's are cast, the host's are not, and all is told under CUDA's name and ended
    assert (made.dtype, of_host.dtype) == (kind, FLOAT)
    assert inside == ((True, True, kind) if region()._enabled else (False, False, HALF))
    assert (x @ x).dtype == FLOAT
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled(device().type)


def test_state_that_is_set_without_a_region_is_the_devices() -> None:
    # GIVEN the functions that regions call WHEN they set CUDA's state, in the ways of today and of before
    x = torch.ones(2, 2, device=device())
    try:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", BFLOAT16)
        today = (x @ x).dtype
        torch.set_autocast_gpu_dtype(HALF)
        before = (x @ x).dtype
    finally:
        torch.set_autocast_enabled(False)
        torch.set_autocast_dtype("cuda", HALF)
    # THEN it is the device's, too
    assert (today, before, (x @ x).dtype) == (BFLOAT16, HALF, FLOAT)


class Squares(torch.autograd.Function):
    """What computes in float32 whatever is around, and says what it saw."""

    seen: list[Any] = []  # noqa: RUF012 - of this test

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=FLOAT)  # type: ignore[untyped-decorator]  # torch leaves it so
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Squares.seen.append((x.dtype, torch.is_autocast_enabled("cuda")))
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Squares.seen.append((gradient.dtype, torch.is_autocast_enabled("cuda")))
        return gradient


def test_decorators_for_cuda_cast_the_devices_tensors() -> None:
    # GIVEN a function of autograd that is decorated for CUDA
    x = torch.ones(2, 2, device=device(), dtype=HALF, requires_grad=True)
    Squares.seen.clear()
    # WHEN it runs in a region
    with torch.autocast("cuda"):
        made: Any = Squares.apply(x)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    made.sum().backward()
    # THEN its inputs were cast, and autocast was off
    assert Squares.seen == [(FLOAT, False), (FLOAT, False)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.amp.GradScaler("cuda", 8.0),
        lambda: torch.amp.GradScaler(init_scale=8.0),
        lambda: torch.amp.GradScaler(device="cuda", init_scale=8.0),
        lambda: torch.cuda.amp.GradScaler(8.0),
    ],
)
def test_a_scaler_for_cuda_scales(make: Callable[[], Any]) -> None:
    # GIVEN a scaler for CUDA and a loss whose gradient is one step from beyond half precision
    weight = torch.nn.Parameter(torch.ones(2, device=device()))
    scaler, optimizer = make(), torch.optim.SGD([weight], lr=1.0)
    # WHEN it scales and steps, then meets what is not finite
    scaler.scale(weight.sum()).backward()
    scaled = weight.grad
    assert scaled is not None
    seen = scaled.tolist()
    scaler.step(optimizer)
    scaler.update()
    scaled.fill_(torch.inf)
    scaler.scale(weight.sum())
    scaler.step(optimizer)
    scaler.update()
    # THEN gradients were scaled, one step was taken, the other skipped, and the scale is half
    assert scaler.is_enabled()
    assert (seen, weight.tolist(), scaler.get_scale()) == ([8.0, 8.0], [0.0, 0.0], 4.0)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_are_one_kernel_in_the_lower_precision(kind: Any) -> None:
    # GIVEN a recurrent layer of the device, and one of the host WHEN they run in a region for CUDA
    layer, host = kind(4, 4).to(device()), kind(4, 4)
    with torch.autocast("cuda"):
        made, state = layer(torch.ones(3, 1, 4, device=device()))
        of_host, _ = host(torch.ones(3, 1, 4))
    made.sum().backward()
    # THEN the device's gives halves, its state too, and its gradients are float32
    states = state if isinstance(state, tuple) else (state,)
    assert {made.dtype, *(each.dtype for each in states)} == {HALF}
    assert (of_host.dtype, layer.weight_ih_l0.grad.dtype) == (FLOAT, FLOAT)


def test_what_takes_the_widest_type_takes_no_other() -> None:
    # GIVEN tensors of half precision, float32 and bfloat16 WHEN they meet in what widens THEN as on CUDA
    half, one = (torch.ones(2, device=device(), dtype=kind) for kind in (HALF, FLOAT))
    with torch.autocast("cuda"):
        assert [torch.dot(half, half).dtype, torch.dot(half, one).dtype] == [HALF, FLOAT]
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast::prioritize"):
            torch.dot(half, half.to(BFLOAT16))
    # and where the region's own type is not the lower one, it is as torch looks at them: one after the other [H200]
    with torch.autocast("cuda", dtype=BFLOAT16):
        assert torch.dot(one, half).dtype == FLOAT
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast::prioritize"):
            torch.dot(half, one)
    with torch.autocast("cuda", dtype=torch.float64), pytest.raises(RuntimeError, match="promote type is double"):
        torch.dot(one, one)


def test_without_the_device_torch_is_as_it_was(repository: Path) -> None:
    # GIVEN a process that imports the package and makes no device WHEN it asks for CUDA's autocast
    program = (
        "import warnings; import paramgraph_kit, torch\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    print(torch.autocast('cuda')._enabled, torch.amp.GradScaler('cuda').is_enabled(), len(told))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=repository, check=True)
    # THEN torch turns both off and says so
    assert done.stdout.split() == ["False", "False", "2"]
