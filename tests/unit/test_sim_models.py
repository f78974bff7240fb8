"""Models on the simulated device: training equals the CPU's, and a captured step equals the eager one bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from paramgraph_kit.driver.select import device
from tests.unit.sim_models import GPT, example, loss_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
MODELS = ("llama", "gpt", "resnet")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, target: torch.Tensor) -> list[float]:
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, x, target)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
        lambda ps: torch.optim.Adam(ps, 1e-2),
        lambda ps: torch.optim.AdamW(ps, 1e-2, foreach=False),
        lambda ps: torch.optim.AdamW(ps, 1e-2, foreach=True),
        lambda ps: torch.optim.AdamW(ps, 1e-2, fused=True),
    ],
    ids=["sgd", "adam", "adamw", "adamw-foreach", "adamw-fused"],
)
def test_training_equals_the_cpus(name: str, optimizer: Any) -> None:
    # GIVEN a model on the CPU and its copy on the device
    model, x, target = example(name)
    twin_model = copy.deepcopy(model).to(device())
    # WHEN both are trained
    losses = train(model, optimizer(model.parameters()), x, target)
    twins = train(twin_model, optimizer(twin_model.parameters()), x.to(device()), target.to(device()))
    # THEN the losses fall, and are the same but for rounding
    assert losses[-1] < losses[0]
    torch.testing.assert_close(torch.tensor(twins), torch.tensor(losses), rtol=1e-5, atol=1e-5)
    for a, b in zip(model.buffers(), twin_model.buffers(), strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_training_step_equals_the_eager_one(name: str, cuda: Any) -> None:
    # GIVEN a model warmed up on a side stream
    model, x, target = example(name)
    model, x, target = model.to(device()), x.to(device()), target.to(device())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, target)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    with cuda.stream(cuda.Stream()):
        step()
        step()
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict())
    # WHEN one step is captured and replayed twice
    optimizer.zero_grad()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = step()
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append(loss.item())
    after = [p.detach().clone() for p in model.parameters()]
    # THEN two eager steps from the same state give the same bits
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    assert replayed == [step().item(), step().item()]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), after, strict=True))


def test_dropout_in_a_captured_model_draws_what_eager_draws(cuda: Any) -> None:
    # GIVEN a GPT with dropout
    torch.manual_seed(0)
    model = GPT(p=0.2).to(device())
    ids = torch.randint(32, (2, 8), device=device())
    graph = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(graph):
        out = model(ids)
    # WHEN it is replayed and run from the same seed THEN the bits are the same
    torch.manual_seed(5)
    graph.replay()
    first = out.clone()
    graph.replay()
    torch.manual_seed(5)
    with torch.no_grad():
        assert torch.equal(model(ids), first)
        assert torch.equal(model(ids), out)
    assert not torch.equal(first, out)


@pytest.mark.parametrize("name", MODELS)
def test_models_trace_with_aot_autograd(name: str) -> None:
    # GIVEN a model and its compiled twin
    model, x, target = example(name)
    model, x, target = model.to(device()), x.to(device()), target.to(device())
    compiled: Any = torch.compile(copy.deepcopy(model), backend="aot_eager")
    # WHEN both run forward and backward
    losses = []
    for m in (model, compiled):
        loss = loss_of(m, x, target)
        torch.autograd.backward(loss)
        losses.append(loss.item())
    # THEN losses and gradients agree
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for p, q in zip(model.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_equal_the_cpus(kind: Any, bias: bool) -> None:
    # GIVEN two layers on the CPU and on the device, where torch calls fused cells
    torch.manual_seed(0)
    model = kind(4, 6, 2, bias=bias)
    other = copy.deepcopy(model).to(device())
    x = torch.randn(5, 3, 4)
    # WHEN both run forward and backward THEN outputs and gradients agree
    outputs = [model(x)[0], other(x.to(device()))[0]]
    torch.testing.assert_close(outputs[1].cpu(), outputs[0])
    for y in outputs:
        torch.autograd.backward(y.square().sum())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad)


def test_autocast_follows_cudas_lists() -> None:
    # GIVEN a model of float32 weights
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(device())
    x = torch.randn(5, 4, device=device())
    # WHEN it runs under autocast
    with torch.autocast("sim", dtype=torch.bfloat16):
        hidden = model[0](x)
        normed = model[1](hidden)
        y = model(x)
        loss = nn.functional.cross_entropy(y, torch.zeros(5, dtype=torch.int64, device=device()))
    # THEN products are bfloat16, norms and losses float32, gradients as the weights
    assert (hidden.dtype, y.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (normed.dtype, loss.dtype) == (torch.float32, torch.float32)
    torch.autograd.backward(loss)
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert (x @ x.t()).dtype == torch.float32


def test_graphed_callables_copy_their_inputs_and_train(cuda: Any) -> None:
    # GIVEN a module graphed the usual way and its eager copy
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device())
    eager = copy.deepcopy(model)
    graphed = cuda.make_graphed_callables(model, (torch.randn(3, 4, device=device(), requires_grad=True),))
    outputs = []
    for _ in range(2):
        x = torch.randn(3, 4, device=device(), requires_grad=True)
        z = x.detach().clone().requires_grad_()
        model.zero_grad()
        eager.zero_grad()
        # WHEN both run on new inputs THEN results and gradients are the same bits
        y, wanted = graphed(x), eager(z)
        assert torch.equal(y, wanted)
        torch.autograd.backward([(y**2).sum(), (wanted**2).sum()])
        assert x.grad is not None
        assert z.grad is not None
        assert torch.equal(x.grad, z.grad)
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            assert torch.equal(p.grad, q.grad)
        outputs.append(y)
    # THEN the first output was overwritten by the second call
    assert torch.equal(*outputs)
    # WHEN an argument is no tensor THEN torch's words refuse it
    with pytest.raises(AssertionError, match="sample_args for each callable must contain only Tensors"):
        cuda.make_graphed_callables(model, (1.0,))
