"""Backward passes on the simulated machine: on which stream they run, and what happens where they raise."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


def leaves_nothing(model: nn.Module, x: torch.Tensor) -> Any:
    model(x).sum().backward()
    model.zero_grad()


def leaves_a_loss(model: nn.Module, x: torch.Tensor) -> Any:
    loss: Any = model(x).sum()
    loss.backward()
    model.zero_grad()
    return loss


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


class WithOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, others: nn.Module) -> torch.Tensor:
        ctx.others = others
        return x + sum(p.sum() for p in others.parameters())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def applied(function: Any, *given: Any) -> Any:
    return function.apply(*given)


ALIVE: dict[str, tuple[Callable[[nn.Module, torch.Tensor], Any], bool]] = {
    "nothing": (leaves_nothing, False),
    "detached clones": (lambda model, x: [p.detach().clone() for p in model.parameters()], False),
    "clones": (lambda model, x: [p.clone() for p in model.parameters()], True),
    "an output": (lambda model, x: model(x), True),
    "a loss": (leaves_a_loss, True),
    "a custom Function's": (lambda model, x: [applied(Doubled, p) for p in model.parameters()], True),
    "a custom Function's that looks at them": (
        lambda model, x: applied(WithOthers, x.clone().requires_grad_(), model),
        False,
    ),
    "nodes": (lambda model, x: [torch.autograd.graph.get_gradient_edge(p) for p in model.parameters()], True),
}


@pytest.mark.parametrize("alive", ALIVE)
@pytest.mark.parametrize("twice", [False, True])
def test_what_is_alive_of_the_default_stream_spoils_a_backward_as_on_an_h200(
    alive: str, twice: bool, sim: torch.device, cuda: Any
) -> None:
    # GIVEN something that was made of a model on the default stream, and a step that is warmed up beside it
    make, fails = ALIVE[alive]
    model, x = nn.Linear(4, 4).to(sim), torch.ones(2, 4, device=sim)
    kept = make(model, x)
    seen: set[bool] = set()
    p: Any
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: seen.add(cuda.current_stream() == cuda.default_stream()))

    def step() -> None:
        model.zero_grad()
        y = model(model(x)) if twice else model(x)
        y.sum().backward()

    side, graph = cuda.Stream(), cuda.CUDAGraph()
    with cuda.stream(side):
        step()
    # THEN the engine accumulates gradients on the stream on which that began
    assert seen == {fails}
    # WHEN captured THEN what an H200 refuses is refused, with its error
    if not fails:
        with cuda.graph(graph):
            step()
        return
    with pytest.raises(torch.AcceleratorError) as caught, cuda.graph(graph):
        step()
    context: Any = caught.value.__context__
    assert context.error_code == 906
    del kept


def test_a_backward_from_a_leaf_is_captured(sim: torch.device, cuda: Any) -> None:
    # GIVEN a leaf that nothing has used, and a gradient of it, as who differentiates by chunks has
    first: Any
    second: Any
    first, second = (torch.ones(2, device=sim, requires_grad=True) for _ in range(2))
    graph = cuda.CUDAGraph()
    given = torch.full((2,), 3.0, device=sim)
    # WHEN its backward is captured THEN the gradient is accumulated by each replay, on the stream of the capture
    with cuda.graph(graph):
        first.backward(given)
        torch.autograd.backward([second, second * 2], [given, given])
    graph.replay()
    assert first.grad.tolist() == [3.0, 3.0]
    assert second.grad.tolist() == [9.0, 9.0]
    # WHEN what accumulates it lives since the default stream used it THEN it is refused, as on a GPU
    kept = first * 2
    with pytest.raises(torch.AcceleratorError) as caught, cuda.graph(cuda.CUDAGraph()):
        first.backward(given)
    context: Any = caught.value.__context__
    assert context.error_code == 906
    del kept


def test_a_backward_runs_on_the_stream_of_its_forward(sim: torch.device, cuda: Any) -> None:
    # GIVEN an operation on a side stream WHEN its backward is called from another THEN it runs on the side stream
    side, seen = cuda.Stream(), []
    x: Any = torch.ones(2, device=sim, requires_grad=True)
    y: Any
    with cuda.stream(side):
        y = x * 2
    z: Any = y + 1
    y.register_hook(lambda g: seen.append(cuda.current_stream()))
    with cuda.stream(cuda.Stream()):
        z.sum().backward()
    assert seen == [side]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("by_backward", [False, True])
def test_gradients_of_gradients_are_captured_whatever_ran_before(
    by_backward: bool, sim: torch.device, cuda: Any
) -> None:
    # GIVEN backward passes on the default stream that count up or not, and a step with a gradient's gradient
    before: Any = torch.ones(2, device=sim, requires_grad=True)
    for _ in range(3):
        (before * 2).sum().backward()
    weight: Any = torch.full((3,), 2.0, device=sim, requires_grad=True)
    x: Any = torch.ones(3, device=sim, requires_grad=True)

    def step() -> Any:
        y: Any
        weight.grad = x.grad = None
        y = (weight * x).pow(3).sum()
        if by_backward:
            y.backward(create_graph=True)
            gradient = x.grad
            x.grad = None
        else:
            (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        weight.grad = None
        gradient.square().sum().backward()
        return weight.grad

    side, graph = cuda.Stream(), cuda.CUDAGraph()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        expected = step().clone()
    cuda.current_stream().wait_stream(side)
    # WHEN captured THEN nothing of it is taken for work of the default stream, and a replay gives eager's numbers
    with cuda.graph(graph):
        result = step()
    graph.replay()
    assert torch.equal(result.cpu(), expected.cpu())
    # (3 w^3 x^2)^2 differentiated by w: 54 w^5
    assert result.tolist() == pytest.approx([54 * 2.0**5] * 3)


def test_a_jacobian_of_a_transform_is_captured(sim: torch.device, cuda: Any) -> None:
    # GIVEN a transform of torch.func, whose leaves no kernel ever sees, warmed up beside the default stream
    net, x = nn.Linear(3, 3).to(sim), torch.ones(2, 3, device=sim)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: v.square() + net(v)))
    side, graph = cuda.Stream(), cuda.CUDAGraph()
    with cuda.stream(side):
        jacobian(x)
    # WHEN captured THEN it is, and the replay gives the Jacobian
    with cuda.graph(graph):
        result = jacobian(x)
    graph.replay()
    expected = net.weight.detach().cpu() + 2 * torch.eye(3)
    assert torch.allclose(result.detach().cpu(), expected.expand(2, 3, 3))


def test_an_exception_in_a_backward_arrives(sim: torch.device) -> None:
    # GIVEN hooks that raise, from Python and from an operation WHEN run THEN the caller gets that very exception
    x: Any = torch.ones(3, device=sim, requires_grad=True)

    def raises(gradient: torch.Tensor) -> None:
        raise KeyError("mine")

    for hook, expected in ((raises, KeyError), (lambda g: g.reshape(7), RuntimeError)):
        y = x * 2
        y.register_hook(hook)
        with pytest.raises(expected) as caught:
            y.sum().backward()
        assert any(entry.name in ("raises", "<lambda>") for entry in caught.traceback)
    # and everything goes on
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
    # and it is told as the function's own
    found = pgk.diagnose(lambda: (lambda y: (y.register_hook(raises), y.sum().backward()))(x * 2))
    assert found.codes == ("raises",)


def test_a_process_ends_well_after_an_exception_in_a_backward() -> None:
    # GIVEN a program whose last act is a backward that raises WHEN it exits THEN torch does not abort it
    program = """
import torch, paramgraph_kit as pgk
y = torch.ones(3, device=pgk.device(), requires_grad=True) * 2
y.register_hook(lambda g: g.reshape(7))
try:
    y.sum().backward()
except RuntimeError as error:
    print("got", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, "got shape '[7]' is invalid for input of size 3\n"), done.stderr


def test_a_backward_that_raises_beside_a_profiler_ends_no_process() -> None:
    # GIVEN a program that is profiled, as a notebook's cell may be, and that collects its garbage all the time
    program = """
import gc, sys, torch, paramgraph_kit as pgk
from paramgraph_kit.driver.sim.guard import DeviceGuard
y = torch.ones(3, device=pgk.device(), requires_grad=True) * 2
y.register_hook(lambda g: g.reshape(7))
gc.set_threshold(1)
gc.callbacks.append(lambda phase, information: None)
sys.setprofile(lambda frame, event, argument: None)
try:
    y.sum().backward()
except RuntimeError as error:
    sys.setprofile(None)
    print("got", error)
print(hasattr(DeviceGuard.type_, "__code__"))
"""
    # WHEN its backward raises on the engine's thread THEN it is told, in Python 3.12 too, whose functions begin with
    # the profilers of all threads: what torch asks there while the exception is on its way is written in C
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, "got shape '[7]' is invalid for input of size 3\nFalse\n"), done.stderr


def assigned(w: torch.Tensor) -> torch.Tensor:
    y = w * 1
    y[w.detach() > 0] = float("-inf")
    return y.exp()


ASKS_NOBODY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max": lambda w: w - w.max(),
    "min": lambda w: w - w.min(),
    "median": lambda w: w - w.median(),
    "a number through a mask": assigned,
}


@pytest.mark.parametrize("name", ASKS_NOBODY)
def test_a_backward_that_asks_nobody_on_cuda_is_captured(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a function whose backward pass asks the host on the CPU only
    function = ASKS_NOBODY[name]
    w = torch.randn(6, 4, device=sim, requires_grad=True)

    def gradient(of: torch.Tensor) -> Any:
        return torch.autograd.grad((function(of) ** 2).sum(), of)[0]

    gradient(w)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = gradient(w)
    # WHEN replayed with other values THEN it gives the CPU's gradients
    for _ in range(2):
        with torch.no_grad():
            w.copy_(torch.randn(6, 4))
        graph.replay()
        torch.testing.assert_close(out.cpu(), gradient(w.detach().cpu().requires_grad_()))


def test_a_backward_that_fails_leaves_nothing_to_the_collector(sim: torch.device, cuda: Any) -> None:
    # GIVEN a leaf whose backward has failed on the default stream, once in the engine and once before it
    gc.collect()
    gc.disable()
    try:
        leaf, other = (torch.ones(3, device=sim, requires_grad=True) for _ in range(2))
        with contextlib.suppress(RuntimeError):
            torch.autograd.backward(leaf.exp().mul_(2).sum())
        with contextlib.suppress(RuntimeError):
            torch.autograd.grad((leaf * 2).sum(), [leaf, other])
        # WHEN a capture uses it THEN what accumulates its gradient is made there, as that of before is gone
        with cuda.graph(graph := cuda.CUDAGraph()):
            (found,) = torch.autograd.grad((leaf * 2).sum(), leaf)
    finally:
        gc.enable()
    graph.replay()
    assert found.tolist() == [2.0, 2.0, 2.0]


def test_a_second_backward_of_an_eager_loss_spoils_a_capture(sim: torch.device, cuda: Any) -> None:
    # GIVEN a loss made and freed on the default stream
    x = torch.ones(2, device=sim, requires_grad=True)
    loss = (x * x).sum()
    torch.autograd.backward(loss)
    graph = cuda.CUDAGraph()
    # WHEN a capture goes backward from it again THEN torch refuses, and the capture is lost: CUDA's engine lets the
    # default stream wait for the capture before it looks at what was saved
    with (
        pytest.raises(torch.AcceleratorError, match="previous error during capture"),
        cuda.graph(graph),
        pytest.raises(RuntimeError, match="a second time"),
    ):
        torch.autograd.backward(loss)


def test_a_second_backward_of_a_captured_loss_leaves_the_capture_alone(sim: torch.device, cuda: Any) -> None:
    # GIVEN a leaf that nobody has used elsewhere
    x = torch.ones(2, device=sim, requires_grad=True)
    with cuda.graph(graph := cuda.CUDAGraph()):
        loss = (x * x).sum()
        torch.autograd.backward(loss)
        # WHEN a capture goes backward twice from its own loss THEN torch refuses
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.backward(loss)
    # and what was captured replays
    graph.replay()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_tensor_of_the_host_has_no_stream_to_record(cuda: Any) -> None:
    # GIVEN a tensor on the CPU WHEN a stream is to be recorded for it THEN torch knows no such operation
    with pytest.raises(NotImplementedError, match="aten::record_stream"):
        torch.ones(2).record_stream(cuda.current_stream())


def _kept_on_the_default_stream(sim: torch.device) -> tuple[torch.Tensor, Any]:
    """A leaf, and the node that accumulates its gradient, which lives and belongs to the default stream."""
    leaf = torch.ones(2, device=sim, requires_grad=True)
    return leaf, torch.autograd.graph.get_gradient_edge(leaf)


class TestErrorsThatNodesRaise:
    """The engine meets them before it hands a gradient to a leaf of another stream."""

    def test_a_checkpoint_that_changes_its_mind_is_told_first(self, sim: torch.device, cuda: Any) -> None:
        # GIVEN a leaf of the default stream, and a checkpointed part that computes something else when it runs again
        leaf, kept = _kept_on_the_default_stream(sim)
        sizes = iter([2, 1])

        def part(x: torch.Tensor) -> torch.Tensor:
            return (x * torch.ones(next(sizes), device=sim)).exp().sum()

        # WHEN a capture goes backward through it THEN that is the error
        with pytest.raises(checkpoint.CheckpointError), cuda.graph(cuda.CUDAGraph()):
            checkpoint.checkpoint(part, leaf, use_reentrant=False).sum().backward()
        del kept

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_a_sound_one_fails_at_its_leaf(self, sim: torch.device, cuda: Any, reentrant: bool) -> None:
        # GIVEN the same leaf WHEN a part is the same each time THEN its leaf's stream spoils the capture, and no other
        leaf, kept = _kept_on_the_default_stream(sim)
        with pytest.raises(RuntimeError, match="previous error during capture") as told, cuda.graph(cuda.CUDAGraph()):
            checkpoint.checkpoint(torch.exp, leaf, use_reentrant=reentrant).sum().backward()
        assert "legacy stream" in str(told.value.__context__)
        del kept
        graph, fresh = cuda.CUDAGraph(), torch.ones(2, device=sim, requires_grad=True)
        with cuda.graph(graph):
            checkpoint.checkpoint(torch.exp, fresh, use_reentrant=reentrant).sum().backward()
        graph.replay()
        assert fresh.grad is not None

    def test_a_leaf_that_a_pass_does_not_go_to_spoils_nothing(self, sim: torch.device, cuda: Any) -> None:
        # GIVEN a leaf of the default stream behind another tensor WHEN a pass goes to that tensor alone THEN it runs
        leaf, kept = _kept_on_the_default_stream(sim)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            y = leaf * 3
            (gradient,) = torch.autograd.grad(y.square().sum(), y)
            z = leaf * 2
            torch.autograd.backward(z.sum(), inputs=[z])
        graph.replay()
        assert z.grad is not None
        assert (gradient.tolist(), z.grad.tolist()) == ([6, 6], [1, 1])
        # WHEN it goes to the leaf THEN it does not
        with pytest.raises(RuntimeError, match="previous error during capture"), cuda.graph(cuda.CUDAGraph()):
            torch.autograd.grad((leaf * 3).sum(), leaf)
        del kept

    def test_a_saved_tensor_that_was_written_to_is_told_first(self, sim: torch.device, cuda: Any) -> None:
        # GIVEN a leaf of the default stream, and what its node has saved, written to meanwhile
        leaf, kept = _kept_on_the_default_stream(sim)
        factor, graph = torch.ones(2, device=sim), cuda.CUDAGraph()
        # WHEN a capture goes backward through it THEN it hears of the write, and goes on
        with cuda.graph(graph):
            y = (leaf * factor).exp()
            factor.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.backward(y.sum())
        graph.replay()
        assert factor.tolist() == [2, 2]
        del kept

    def test_a_hook_of_the_leaf_that_raises_is_told_later(self, sim: torch.device, cuda: Any) -> None:
        # GIVEN a leaf of the default stream with a hook that refuses its gradient
        leaf, kept = _kept_on_the_default_stream(sim)
        called: list[str] = []
        hook = leaf.register_hook(lambda _: called.append("hook"))  # type: ignore[no-untyped-call]
        # WHEN a capture goes backward to it THEN its stream spoils the capture before the hook is asked
        with pytest.raises(RuntimeError, match="previous error during capture"), cuda.graph(cuda.CUDAGraph()):
            (leaf * 3).sum().backward()  # type: ignore[no-untyped-call]
        assert not called
        del kept
        # WHEN nothing is left of the default stream THEN it is, and the user's hooks are as they were
        assert list(leaf._backward_hooks or ()) == [hook.id]
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            (leaf * 3).sum().backward()  # type: ignore[no-untyped-call]
        assert called == ["hook"]
