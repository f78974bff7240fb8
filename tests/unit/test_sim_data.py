"""``tensor.data = other`` between host and device: the tensor stays the same object, as with CUDA [H200]."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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


def test_a_gradient_stays_where_it_is(sim: torch.device) -> None:
    # GIVEN a parameter with a gradient
    weight = nn.Parameter(torch.ones(2, device=sim))
    backward(weight.sum())
    gradient = weight.grad
    # WHEN its data is offloaded THEN the gradient stays on the device, where the next one does not fit
    weight.data = weight.data.cpu()
    assert weight.grad is gradient is not None
    assert (gradient.device, gradient.tolist()) == (sim, [1, 1])
    with pytest.raises(RuntimeError, match="on the same device"):
        backward(weight.sum())
    # and it is of use again where that comes back
    weight.data = weight.data.to(sim)
    backward(weight.sum())
    assert gradient.tolist() == [2, 2]


def test_what_torch_refuses_is_refused(sim: torch.device) -> None:
    # GIVEN a parameter WHEN it is given what is no data for it THEN torch's own words say so
    weight = nn.Parameter(torch.ones(2, device=sim))
    with pytest.raises(RuntimeError, match="must be floating point or complex"):
        weight.data = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        weight.data = torch.zeros(2, device="meta")
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got list"):
        weight.data = [1.0, 2.0]  # type: ignore[assignment]


def test_what_a_backward_or_a_view_holds_moves_under_it(sim: torch.device) -> None:
    # GIVEN a parameter that a backward to come holds, and a tensor with a view WHEN their data moves
    weight, x = nn.Parameter(torch.ones(2, device=sim)), torch.ones(2, device=sim)
    square, view = (weight * weight).sum(), x[:1]
    for each in (weight, x):
        each.data = torch.zeros(2)
        assert each.device.type == "cpu"
    # THEN the view has the memory of then, and the backward meets two devices
    assert (view.device, view.tolist()) == (sim, [1])
    with pytest.raises(RuntimeError, match="on the same device"):
        backward(square)


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


def test_a_mode_sees_the_assignment(sim: torch.device) -> None:
    # GIVEN a device that the user has made the default, which is a mode WHEN data moves THEN it moves
    x = torch.ones(2, device=sim)
    with torch.device("cpu"):
        x.data = torch.zeros(2)
    assert x.device.type == "cpu"


def test_data_of_an_inference_tensor_and_for_one(sim: torch.device) -> None:
    # GIVEN a tensor, and one that was made in inference mode
    plain = torch.zeros(2, device=sim)
    with torch.inference_mode():
        other = torch.ones(2, device=sim)
    # WHEN the one is given the other's data THEN it has that memory, and is of inference, too [H200]
    plain.data = other
    assert plain.data_ptr() == other.data_ptr()
    assert plain.is_inference()
    # WHEN the one of inference is given a tensor's data THEN it is none any more, but counts no versions: no view of it
    fresh = torch.full((2,), 5.0, device=sim)
    other.data = fresh
    assert not other.is_inference()
    assert torch.equal(other * 2, fresh * 2)
    with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
        other[:1]
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        other.mul_(2)
    other.requires_grad_()
    assert (other * fresh).requires_grad
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
        other.mul_(2)


def test_a_parameter_given_inference_data_is_used_in_a_capture(sim: torch.device, cuda: Any) -> None:
    # GIVEN a parameter whose data is a tensor of inference mode: a view of it has no node to ask for
    with torch.inference_mode():
        loaded = torch.full((2,), 3.0, device=sim)
    weight, plain = (nn.Parameter(torch.ones(2, device=sim)) for _ in range(2))
    weight.data = loaded
    graph = cuda.CUDAGraph()
    # WHEN a capture uses it beside one that has data of its own THEN both are recorded
    with cuda.graph(graph):
        y, z = weight * 2, plain * 2
    graph.replay()
    assert (y.tolist(), z.tolist()) == ([6, 6], [2, 2])
    assert y.grad_fn is not None


def test_a_module_that_moves_keeps_its_parameters(sim: torch.device) -> None:
    # GIVEN a module, and a loss of it that lives WHEN it moves THEN its parameters are the same objects, as with CUDA
    module = nn.Linear(2, 2)
    before, loss = [*module.parameters()], module(torch.ones(1, 2)).sum()
    module.to(sim)
    assert [*map(id, module.parameters())] == [*map(id, before)]
    assert {each.device for each in before} == {sim}
    del loss
