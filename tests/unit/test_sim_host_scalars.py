"""Numbers of the host that reach a kernel, and numbers of the device that the host reads, in a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.select import device, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor
PAGEABLE = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
INVALIDATED = "operation failed due to a previous error during capture"


def assign(index: Callable[[Tensor], Any], value: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """An assignment as a function; the operands are made inside of the capture."""

    def call(x: Tensor) -> Any:
        x[index(x)] = value(x)

    return call


def positions(x: Tensor) -> Tensor:
    return torch.zeros(2, dtype=torch.int64, device=x.device)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a number at an index on the device": (assign(positions, lambda x: 5.0), PAGEABLE),
    "a number at a place of one": (assign(lambda x: 0, lambda x: 5.0), PAGEABLE),
    "a number at a place of a matrix": (lambda x: x.view(2, 4).__setitem__((0, 1), 5.0), PAGEABLE),
    "a tensor of the host at an index": (assign(positions, lambda x: torch.tensor(5.0)), PAGEABLE),
    "masked_fill with a value on the device": (lambda x: x.masked_fill(x > 0, x.sum()), INVALIDATED),
    "masked_fill_ with a value on the device": (lambda x: x.masked_fill_(x > 0, x.sum()), INVALIDATED),
    "index_fill with a value on the device": (lambda x: x.index_fill(0, positions(x), x.sum()), INVALIDATED),
    "equal to a copy": (lambda x: torch.equal(x, x.clone()), INVALIDATED),
}
FILLED = () if torch.__version__ < "2.15" else [each for each in REFUSED if each.startswith("a number")]
CAPTURED: dict[str, Callable[[Tensor], Any]] = {
    **{name: REFUSED.pop(name)[0] for name in FILLED},  # torch 2.15 fills them in on the device
    "a value on the device at an index": assign(positions, lambda x: x.sum()),
    "a filled tensor at an index": assign(positions, lambda x: torch.full((), 5.0, device=x.device)),
    "a number at a mask": assign(lambda x: x > 0, lambda x: 5.0),
    "a number in a row": lambda x: x.view(2, 4).__setitem__(0, 5.0),
    "a number in a slice of one": assign(lambda x: slice(0, 1), lambda x: 5.0),
    "a value on the device at a place of one": assign(lambda x: 0, lambda x: x.sum()),
    "masked_fill with a tensor of the host": lambda x: x.masked_fill_(x > 0, torch.tensor(5.0)),
    "index_fill with a number": lambda x: x.index_fill_(0, positions(x), 5.0),
    "equal to itself": lambda x: (x.add_(1), torch.equal(x, x)),
    "unequal in size": lambda x: (x.add_(1), torch.equal(x, x[1:])),
    "an event that was never recorded": lambda x: (x.add_(1), twin().Event().query(), twin().Event().synchronize()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(cuda: Any, name: str) -> None:
    # GIVEN a program that runs eagerly
    program, message = REFUSED[name]
    x = torch.arange(8.0).to(device())
    program(x)

    # WHEN it is captured THEN it fails as on a GPU
    with pytest.raises(RuntimeError, match=message), cuda.graph(cuda.CUDAGraph()):
        program(x)


@pytest.mark.parametrize("name", CAPTURED)
def test_what_cuda_captures_replays_as_eager(cuda: Any, name: str) -> None:
    # GIVEN a program captured
    x, twin_of_x = (torch.arange(8.0).to(device()) for _ in range(2))
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        CAPTURED[name](x)

    # WHEN it is replayed THEN it does what it does eagerly
    graph.replay()
    CAPTURED[name](twin_of_x)
    assert x.tolist() == twin_of_x.tolist()


@pytest.mark.parametrize("call", [torch.clamp, torch.clamp_min, torch.clamp_max, torch.Tensor.clamp_])
def test_clamp_takes_no_tensor_of_the_host(call: Callable[..., Any]) -> None:
    x = torch.ones(3, device=device())

    with pytest.raises(RuntimeError, match=r"but got (min|max) is on cpu, different from other tensors on sim:0"):
        call(x, torch.tensor(0.0))


def test_lists_of_tensors_are_copied_between_devices(sim: torch.device, cuda: Any) -> None:
    # GIVEN a list here and one there WHEN copied in one call THEN each goes over, as CUDA does where devices differ
    there, here = [torch.zeros(2, device=sim), torch.zeros(3, device=sim)], [torch.ones(2), torch.ones(3)]
    torch._foreach_copy_(there, here)
    assert [t.tolist() for t in there] == [[1, 1], [1, 1, 1]]
    back = [torch.zeros(2), torch.zeros(3)]
    torch._foreach_copy_(back, there)
    assert [t.tolist() for t in back] == [[1, 1], [1, 1, 1]]

    # AND in a capture pageable memory is refused
    def copied() -> None:
        with cuda.graph(cuda.CUDAGraph()):
            there[0].add_(1)
            torch._foreach_copy_(there, here)

    with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
        copied()


def test_a_part_of_a_parameter_is_written_where_gradients_are_off(sim: torch.device) -> None:
    # GIVEN a parameter WHEN something is added to a part of it without gradients THEN that is done, as on a GPU
    layer = torch.nn.Linear(2, 3).to(sim)
    before = layer.bias.detach().clone()
    with torch.no_grad():
        layer.bias[1] += 1.0
    assert (layer.bias - before).tolist() == pytest.approx([0, 1, 0])
