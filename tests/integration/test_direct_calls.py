"""Compiled graphs called without the wrappers: the same bits, errors, hooks and memory as through them."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import paramgraph_kit as pgk
from paramgraph_kit.backend.direct.calls import Codes, DirectCall
from paramgraph_kit.backend.direct.recipe import GraphCode

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()
STEPS = 6


class Block(nn.Module):
    """A residual block with a buffer that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        y: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DirectCall]]:
    """Every direct call that a test compiles."""
    found: list[DirectCall] = []
    before = DirectCall.__init__

    def init(self: DirectCall, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        found.append(self)

    torch._dynamo.reset()
    monkeypatch.setattr(DirectCall, "__init__", init)
    yield found
    torch._dynamo.reset()


def is_direct(call: DirectCall) -> bool:
    return repr(call) == "DirectCall(direct)"


def warmed(function: Callable[..., Any], *shape: int) -> Any:
    """``function`` compiled and trained until it is called directly."""
    compiled = torch.compile(function, backend="paramgraph")
    for _ in range(3):
        x = torch.randn(*shape, device=DEVICE, requires_grad=True)
        result = compiled(x)
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
    return compiled


def test_training_is_equal_bit_for_bit_and_direct_from_the_third_step(made: list[DirectCall]) -> None:
    # GIVEN two copies of a model, one compiled
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="paramgraph")
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, eager)]

    # WHEN both are trained
    for step in range(STEPS):
        x = torch.randn(4, 16, device=DEVICE)
        losses = [each(x).square().mean() for each in (compiled, eager)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        # THEN losses, parameters, buffers and their versions are the same at each step
        assert torch.equal(*losses), step
        for ours, theirs in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs), step
        assert model[0].calls._version == eager[0].calls._version
        assert is_direct(made[0]) == (step >= 2)


def test_inference_is_equal_and_direct_from_the_third_call(made: list[DirectCall]) -> None:
    # GIVEN
    model = nn.Sequential(Block(), Block()).to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="paramgraph")

    # WHEN / THEN
    with torch.no_grad():
        for call in range(STEPS):
            x = torch.randn(4, 16, device=DEVICE)
            assert torch.equal(compiled(x), eager(x))
            assert model[1].calls._version == eager[1].calls._version
            assert is_direct(made[0]) == (call >= 1)


class Scaled(nn.Module):
    """A block that multiplies by a tensor which its graph keeps as a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x * torch.tensor(16.0**0.5, dtype=x.dtype, device=x.device))
        return y * torch.tensor([0.5] * 16, device=x.device)


def test_graphs_with_constants_are_called_directly(made: list[DirectCall]) -> None:
    # GIVEN
    model = Scaled().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="paramgraph")

    # WHEN trained and called without gradients
    for step in range(STEPS):
        x = torch.randn(4, 16, device=DEVICE)
        for each, module in ((compiled, model), (eager, eager)):
            module.zero_grad()
            torch.autograd.backward(each(x).square().mean())
        with torch.no_grad():
            assert torch.equal(compiled(x), eager(x))

        # THEN gradients are the same, and the calls direct
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)
        assert [is_direct(each) for each in made] == [step >= 2, step >= 1]


def test_results_without_gradients_and_results_that_nobody_uses(made: list[DirectCall]) -> None:
    # GIVEN a function of several results, one of them whole numbers
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.sin()
        return y * 2, y.argmax(-1), y.exp()

    compiled = warmed(function, 4, 8)

    # WHEN only the last is differentiated
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    ours, theirs = compiled(x), function(twin)
    ours[2].sum().backward()
    theirs[2].sum().backward()  # type: ignore[no-untyped-call]

    # THEN everything is as eager has it
    assert is_direct(made[0])
    assert [r.requires_grad for r in ours] == [True, False, True]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert x.grad is not None
    assert twin.grad is not None
    assert torch.equal(x.grad, twin.grad)


@pytest.mark.parametrize("lay", [lambda g: g.expand(4, 8), lambda g: torch.randn(8, 4, device=DEVICE).t()])
def test_gradients_that_lie_otherwise_than_at_first(made: list[DirectCall], lay: Callable[[Tensor], Tensor]) -> None:
    # GIVEN
    compiled = warmed(lambda x: (x * 2).sin(), 4, 8)
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    gradient = lay(torch.ones((), device=DEVICE))

    # WHEN
    compiled(x).backward(gradient)
    (twin * 2).sin().backward(gradient)  # type: ignore[no-untyped-call]

    # THEN
    assert is_direct(made[0])
    assert x.grad is not None
    assert twin.grad is not None
    assert torch.equal(x.grad, twin.grad)


def test_a_parameter_written_before_the_backward_is_an_error(made: list[DirectCall]) -> None:
    # GIVEN a direct call whose backward reads the weight
    layer = nn.Linear(8, 8).to(DEVICE)
    compiled = warmed(layer, 4, 8)
    loss = compiled(torch.randn(4, 8, device=DEVICE, requires_grad=True)).sum()
    assert is_direct(made[0])

    # WHEN it is written in between / THEN autograd's own error says so
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .*\[8, 8\]\] is at version"):
        loss.backward()


def test_a_saved_result_written_before_the_backward_is_an_error(made: list[DirectCall]) -> None:
    # GIVEN a direct call whose backward reads its own result
    compiled = warmed(torch.sigmoid, 4, 8)
    result = compiled(torch.randn(4, 8, device=DEVICE, requires_grad=True))
    assert is_direct(made[0])

    # WHEN / THEN
    with torch.no_grad():
        result.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_second_backward_is_an_error(made: list[DirectCall]) -> None:
    compiled = warmed(lambda x: x.sin().cos(), 4, 8)
    loss = compiled(torch.randn(4, 8, device=DEVICE, requires_grad=True)).sum()
    loss.backward()
    assert is_direct(made[0])

    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_kept_graph_gives_the_same_gradient_again_or_says_that_it_cannot(made: list[DirectCall]) -> None:
    compiled = warmed(lambda x: x.sin().cos(), 4, 8)
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    result = compiled(x)
    assert is_direct(made[0])

    step = made[0]._step
    assert step is not None
    if step.wrapping.donates:
        with pytest.raises(RuntimeError, match="donated_buffer=False"):
            torch.autograd.grad(result.sum(), x, retain_graph=True)
    else:
        first, second = (torch.autograd.grad(result.sum(), x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(first, torch.autograd.grad(x.sin().cos().sum(), x)[0])


def test_gradients_of_gradients_are_refused_and_not_zero(made: list[DirectCall]) -> None:
    # GIVEN
    with torch._functorch.config.patch(donated_buffer=False):
        compiled = warmed(lambda x: x**3, 4, 8)
        x = torch.randn(4, 8, device=DEVICE, requires_grad=True)

        # WHEN
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)

        # THEN
        assert is_direct(made[0])
        assert gradient.requires_grad
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            gradient.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("verify", ["off", "always"])
@pytest.mark.parametrize(
    "function", [lambda x: x**3, lambda x: x.exp(), lambda x: (x.exp() * 2).view(-1), lambda x: (x.sin(), x.sum())[0]]
)
def test_a_gradient_of_a_gradient_is_an_error_in_every_call(function: Any, verify: str) -> None:
    # GIVEN a parameterized function, in its first calls and launched
    step = pgk.parameterize(function, verify=verify)
    for _ in range(5):
        x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
        (gradient,) = torch.autograd.grad(step(x).sum(), x, create_graph=True)
        assert torch.equal(gradient, torch.autograd.grad(function(x).sum(), x)[0])
        # WHEN somebody asks for the gradient of its gradient, in one way or another
        asks: list[Any] = [
            lambda g=gradient, x=x: torch.autograd.grad(g.sum(), x, allow_unused=True, retain_graph=True),
            lambda g=gradient, x=x: torch.autograd.grad((g.sum() + 3 * x.sum()), x, retain_graph=True),
            lambda g=gradient, x=x: g.square().sum().backward(),
        ]
        # THEN the error says so, and what to call: no None that passes for a zero
        for ask in asks:
            with pytest.raises(RuntimeError, match=r"nor does pgk.parameterize: .* __wrapped__"):
                ask()


def test_what_tells_of_gradients_of_gradients_keeps_nothing_alive() -> None:
    # GIVEN a parameterized function WHEN its results are gone THEN so is what they came from
    step = pgk.parameterize(lambda x: (x.exp() * 2,), verify="always")
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    for _ in range(4):
        (y,) = step(x)
        node = weakref.ref(y.grad_fn)
        y.sum().backward()
        del y
        assert node() is None


def test_hooks_on_saved_tensors_are_called(made: list[DirectCall]) -> None:
    # GIVEN a direct call
    compiled = warmed(lambda x: x.sin().cos(), 4, 8)
    assert is_direct(made[0])
    packed: list[Tensor] = []

    # WHEN somebody wants to see what is saved
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compiled(x)
    result.sum().backward()

    # THEN it goes through them
    assert packed
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(x.sin().cos().sum(), x)[0])


def test_checkpointed_blocks_train_as_eager_ones(made: list[DirectCall]) -> None:
    block = Block().to(DEVICE)
    eager = copy.deepcopy(block)
    compiled = torch.compile(block, backend="paramgraph")
    for _ in range(STEPS):
        x = torch.randn(4, 16, device=DEVICE)
        checkpoint(compiled, x, use_reentrant=False).sum().backward()
        checkpoint(eager, x, use_reentrant=False).sum().backward()
    for ours, theirs in zip(block.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_hooks_of_parameters_and_modules_run(made: list[DirectCall]) -> None:
    # GIVEN hooks of every kind that sees gradients
    layer = nn.Linear(8, 8).to(DEVICE)
    seen: list[str] = []
    layer.weight.register_hook(lambda g: seen.append("tensor"))  # type: ignore[no-untyped-call]
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))  # type: ignore[no-untyped-call]
    compiled = warmed(layer, 4, 8)
    assert is_direct(made[0])
    seen.clear()

    # WHEN
    compiled(torch.randn(4, 8, device=DEVICE, requires_grad=True)).sum().backward()

    # THEN
    assert seen == ["tensor", "accumulated"]


def test_under_autocast_casts_are_made_once(made: list[DirectCall]) -> None:
    layer = nn.Linear(8, 8).to(DEVICE)
    eager = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="paramgraph")
    for _ in range(STEPS):
        x = torch.randn(4, 8, device=DEVICE)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            ours, theirs = compiled(x), eager(x)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
        ours.float().sum().backward()
        theirs.float().sum().backward()
    assert layer.weight.grad is not None
    assert eager.weight.grad is not None
    assert torch.equal(layer.weight.grad, eager.weight.grad)


def test_a_forward_without_backward_leaves_nothing(made: list[DirectCall]) -> None:
    compiled = warmed(lambda x: x.sin().cos().exp(), 512, 1024)
    x = torch.randn(512, 1024, device=DEVICE, requires_grad=True)
    gc.disable()
    try:
        before = pgk.cuda.memory_allocated()
        result = compiled(x)
        del result
        assert pgk.cuda.memory_allocated() == before
    finally:
        gc.enable()


def test_what_the_wrappers_do_more_keeps_them(made: list[DirectCall]) -> None:
    # GIVEN functions whose wrappers make views of inputs, or of other results
    def of_input(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.t(), x.sin()

    def of_result(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, y.t()

    for function in (of_input, of_result):
        compiled = torch.compile(function, backend="paramgraph")
        for _ in range(4):
            x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
            ours, theirs = compiled(x), function(x)
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
            ours[1].sum().backward()  # type: ignore[no-untyped-call]

    # THEN they are not called directly
    assert len(made) == 2
    assert not any(map(is_direct, made))


@pytest.mark.parametrize("guards", ["full", "dynamo", "inputs"])
def test_a_function_that_leaves_gradients_switched_off_does_so_at_each_call(guards: str) -> None:
    # GIVEN a compiled function that switches gradients WHEN it is called THEN they are as it left them
    def off(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    compiled = pgk.compile(off, guards=guards)
    for _ in range(6):
        with torch.enable_grad():
            compiled(torch.ones(3, device=DEVICE))
            assert not torch.is_grad_enabled()


def test_other_shapes_and_frozen_parameters_are_compiled_again(made: list[DirectCall]) -> None:
    layer = nn.Linear(8, 8).to(DEVICE)
    compiled = torch.compile(layer, backend="paramgraph", dynamic=False)
    for rows in (4, 4, 4, 4, 6, 6, 6, 6):
        x = torch.randn(rows, 8, device=DEVICE)
        assert torch.equal(compiled(x), F.linear(x, layer.weight, layer.bias))
        compiled(x).sum().backward()
    layer.bias.requires_grad_(False)
    layer.zero_grad()
    for _ in range(4):
        compiled(torch.randn(4, 8, device=DEVICE)).sum().backward()
    assert layer.bias.grad is None
    assert layer.weight.grad is not None


def test_maps_and_derivatives_of_a_compiled_function_still_work(made: list[DirectCall]) -> None:
    compiled = warmed(lambda x: x.sin() * x, 4, 8)
    x = torch.randn(3, 4, 8, device=DEVICE)

    assert torch.equal(torch.stack([compiled(each) for each in x]), x.sin() * x)
    assert is_direct(made[0])


def test_every_name_of_the_metadata_is_there() -> None:
    """What is read of AOTAutograd's metadata exists, or is known to be newer than torch 2.11."""
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

    from paramgraph_kit.backend.direct.metadata import NEWER, NOTHING_ELSE, PLAIN

    codes: list[Codes] = []
    add = Codes.add

    def noted(self: Codes, code: GraphCode) -> GraphCode:
        codes.append(self)
        return add(self, code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Codes, "add", noted)
        torch.compile(lambda x: x * 2, backend="paramgraph")(torch.ones(2, device=DEVICE))
    seen = [each.metadata for each in codes]
    assert isinstance(seen[0], ViewAndMutationMeta)
    names = [*(n for n in NOTHING_ELSE if n not in NEWER), *PLAIN, "bw_donated_idxs", "num_outputs", "output_info"]
    assert [n for n in names if not hasattr(seen[0], n)] == []
    assert hasattr(seen[0], "mutated_graph_handled_indices_seen_by_autograd")


def test_layers_that_share_one_graph_are_all_called_directly(made: list[DirectCall]) -> None:
    # GIVEN a stack of blocks compiled one by one, whose backwards come in the opposite order
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(5)]).to(DEVICE)
    eager = copy.deepcopy(model)
    for block in model:
        block.compile(backend="paramgraph")

    # WHEN they are trained
    for _ in range(STEPS):
        x = torch.randn(4, 16, device=DEVICE, requires_grad=True)
        model(x).square().sum().backward()
        eager(x.detach().requires_grad_()).square().sum().backward()

    # THEN the one graph that they share is called directly, with the right gradients
    assert len(made) == 1
    assert is_direct(made[0])
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
