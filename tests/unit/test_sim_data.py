"""``tensor.data = other`` between host and device: the tensor stays the same object, as with CUDA [H200]."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paramgraph_kit.driver.sim.not_known import NotKnownWarning

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


def backward(loss: Any) -> None:
    """Go back from it."""
    loss.backward()


def test_a_parameter_goes_to_the_host_and_back_under_its_graph(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that reads a parameter, and an optimizer of it
    weight, x = nn.Parameter(torch.ones(2, device=sim)), torch.ones(2, device=sim)
    optimizer, graph, kept = torch.optim.SGD([weight], lr=1.0), cuda.CUDAGraph(), weight.data
    with torch.no_grad(), cuda.graph(graph):
        y = weight * x
    # WHEN its data is the host's
    version = weight._version
    weight.data = torch.zeros(2)
    # THEN so is the parameter, which trains there, and the graph reads what it read
    assert (weight.device.type, type(weight), weight.requires_grad) == ("cpu", nn.Parameter, True)
    assert weight._version == version
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        weight * x
    backward((weight * torch.ones(2)).sum())
    optimizer.step()
    assert weight.tolist() == [-1, -1]
    graph.replay()
    assert y.tolist() == [1, 1]
    # WHEN it comes back THEN it is the device's, in other memory; with what it had, in the graph's
    weight.grad = None
    weight.data = weight.data.to(sim)
    assert (weight.device.type, (weight * x).tolist()) == (sim.type, [-1, -1])
    graph.replay()
    assert y.tolist() == [1, 1]
    weight.data = kept
    weight.data.fill_(5.0)
    graph.replay()
    assert y.tolist() == [5, 5]


def test_it_shares_memory_and_takes_another_shape_and_type(sim: torch.device) -> None:
    # GIVEN a tensor of the device, with an attribute WHEN its data is a host tensor of another shape and type
    x, host = torch.ones(4, device=sim), torch.zeros(2, 3, dtype=torch.int32)
    x.mine = "kept"  # type: ignore[attr-defined]
    x.data = host
    # THEN it has them, over the same memory
    assert (x.shape, x.dtype, x.data_ptr()) == (host.shape, host.dtype, host.data_ptr())
    assert x.mine == "kept"  # type: ignore[attr-defined]
    host.fill_(3)
    assert x.tolist() == [[3] * 3] * 2


def test_hooks_stay(sim: torch.device) -> None:
    # GIVEN a parameter with hooks for its gradient WHEN its data moves THEN they run as before
    weight: Any = nn.Parameter(torch.ones(2, device=sim))
    seen = list[str]()
    weight.register_hook(lambda gradient: seen.append(gradient.device.type))
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append("after"))
    weight.data = torch.ones(2)
    backward(weight.sum())
    assert seen == ["cpu", "after"]


def test_a_gradient_goes_along_and_that_is_said(sim: torch.device) -> None:
    # GIVEN a parameter with a gradient, of which a GPU leaves one where it is
    weight = nn.Parameter(torch.ones(2, device=sim))
    backward(weight.sum())
    gradient = weight.grad
    # WHEN its data is offloaded THEN the gradient is, too, and the device says so
    with pytest.warns(NotKnownWarning, match="a gradient on another device"):
        weight.data = weight.data.cpu()
    assert weight.grad is gradient is not None
    assert (gradient.device.type, gradient.tolist()) == ("cpu", [1, 1])
    # and there is nothing to say where there is none
    weight.grad = None
    weight.data = weight.data.to(sim)


def test_what_torch_refuses_is_refused(sim: torch.device) -> None:
    # GIVEN a parameter WHEN it is given what is no data for it THEN torch's own words say so
    weight = nn.Parameter(torch.ones(2, device=sim))
    with pytest.raises(RuntimeError, match="must be floating point or complex"):
        weight.data = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        weight.data = torch.zeros(2, device="meta")
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got list"):
        weight.data = [1.0, 2.0]  # type: ignore[assignment]


def test_what_a_backward_or_a_view_holds_is_not_known(sim: torch.device) -> None:
    # GIVEN a parameter that a backward to come holds, and a tensor with a view WHEN their data moves
    weight, x = nn.Parameter(torch.ones(2, device=sim)), torch.ones(2, device=sim)
    held = (weight * weight, x[:1])
    # THEN the device says that it cannot
    for each in (weight, x):
        with pytest.raises(NotImplementedError, match="the simulated device cannot"):
            each.data = torch.zeros(2)
        assert each.device == sim
    del held


def test_a_loss_that_has_gone_back_holds_nothing(sim: torch.device) -> None:
    # GIVEN the loss of a step, which lives on WHEN its parameter is offloaded and comes back THEN the next step trains
    weight, x = nn.Parameter(torch.ones(2, device=sim)), torch.ones(2, device=sim)
    loss = (weight * x).sum()
    backward(loss)
    weight.grad = None
    weight.data = weight.data.cpu()
    weight.data = weight.data.to(sim)
    backward((weight * x).sum())
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1]
    # WHEN a backward to come, which has saved nothing, ends at a parameter that was offloaded THEN it is not known
    loss = weight.sum()
    weight.grad = None
    weight.data = weight.data.cpu()
    with pytest.raises(NotImplementedError, match="the simulated device cannot"):
        backward(loss)


def test_a_mode_sees_the_assignment(sim: torch.device) -> None:
    # GIVEN a device that the user has made the default, which is a mode WHEN data moves THEN it moves
    x = torch.ones(2, device=sim)
    with torch.device("cpu"):
        x.data = torch.zeros(2)
    assert x.device.type == "cpu"


def test_data_of_an_inference_tensor_and_for_one(sim: torch.device, cuda: Any) -> None:
    # GIVEN a tensor, and one that was made in inference mode, which torch's C++ exchanges on CUDA [H200]
    plain = torch.zeros(2, device=sim)
    with torch.inference_mode():
        other = torch.ones(2, device=sim)
    # WHEN either is given the other's data THEN both have that memory, and may be written to as before
    plain.data = other
    assert plain.data_ptr() == other.data_ptr()
    assert plain.add_(1).tolist() == other.tolist() == [2, 2]
    fresh = torch.full((2,), 5.0, device=sim)
    with torch.inference_mode():
        other.data = fresh
        assert other.mul_(2).tolist() == fresh.tolist() == [10, 10]
    assert other.is_inference()
    assert not plain.is_inference()
