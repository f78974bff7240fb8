"""pgk.parameterize on the simulated device: the bits of eager, forward and backward, at any addresses."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.backend.parameterized import MAX_TRACES, Parameterized

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward


def randn(*size: int, seed: int | None = None) -> Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    return torch.randn(*size).to(DEVICE)


def equal(found: Any, expected: Any) -> bool:
    """Whether nested results are equal bit for bit, with layouts and whether they want gradients."""
    ours, one = torch.utils._pytree.tree_flatten(found)
    theirs, other = torch.utils._pytree.tree_flatten(expected)
    return one == other and all(
        (a.stride(), a.dtype, a.requires_grad) == (b.stride(), b.dtype, b.requires_grad)
        and torch.equal(a.detach().cpu(), b.detach().cpu())
        if isinstance(a, Tensor)
        else type(a) is type(b) and a == b
        for a, b in zip(ours, theirs, strict=True)
    )


def launches(step: Parameterized) -> int:
    return sum(row.launches for row in pgk.report(step).rows)


def reasons(step: Parameterized) -> list[str]:
    return [reason.message for reason in pgk.report(step).reasons if reason.code != "not-called"]


def block(x: Tensor, pair: tuple[Tensor, dict[str, Tensor]], scale: float = 1.0) -> dict[str, Any]:
    y, more = pair
    return {"out": [x @ y * scale, (more["bias"] + x).relu()], "scale": scale, "none": None}


def test_a_function_runs_from_one_graph_at_addresses_that_move() -> None:
    # GIVEN a function of nested tensors, traced with examples
    step = pgk.parameterize(block, randn(4, 4), (randn(4, 4), {"bias": randn(4)}))
    assert launches(step) == 0
    held = []
    # WHEN it is called at other addresses, its outputs being held
    for seed in range(5):
        x, y, bias = randn(4, 4, seed=seed), randn(4, 4), randn(4)
        found = step(x, (y, {"bias": bias}))
        # THEN each has eager's bits and structure
        held.append((found, block(x, (y, {"bias": bias}))))
    assert all(equal(found, expected) for found, expected in held)
    report = pgk.report(step)
    assert [(row.graphed, row.launches, row.copied_bytes) for row in report.rows] == [(True, 4, 0)]
    assert report.kernels == (4, 4)


def test_plain_values_and_shapes_are_captured_one_by_one() -> None:
    # GIVEN one callable WHEN called with other numbers, keywords and shapes in turn
    step = pgk.parameterize(block)
    calls: list[tuple[int, float]] = [(4, 1.0), (4, 2.5), (8, 1.0), (4, 0.0), (4, -0.0)] * 3
    for n, scale in calls:
        x, y, bias = randn(n, n), randn(n, n), randn(n)
        # THEN the bits are eager's: 0.0 and -0.0 are two numbers
        found, expected = step(x, (y, {"bias": bias}), scale=scale), block(x, (y, {"bias": bias}), scale=scale)
        assert equal(found, expected)
        assert torch.equal(found["out"][0].cpu().signbit(), expected["out"][0].cpu().signbit())
    assert repr(step) == "Parameterized(block, 5 traces)"
    assert launches(step) == 2 * 5


class Net(nn.Module):
    """Batch norm, dropout and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.4)
        self.last = nn.Linear(6, 12, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.drop(F.gelu(self.norm(self.first(x))))
        return hidden @ self.last.weight, hidden.detach().mean()


def twins(build: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = build().to(DEVICE)
    return model, copy.deepcopy(model)


def train(call: Callable[[Tensor], Any], model: nn.Module, steps: int = 5) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: list[Tensor] = []
    for seed in range(steps):
        x = randn(7, 6, seed=seed).requires_grad_()
        out, mean = call(x)
        out.square().sum().backward()
        assert x.grad is not None
        seen += [
            out.detach().cpu(),
            mean.cpu(),
            x.grad.cpu(),
            *(p.grad.cpu() for p in model.parameters() if p.grad is not None),
        ]
        optimizer.step()
        optimizer.zero_grad(set_to_none=seed % 2 == 0)
    return seen + [value.cpu() for value in model.state_dict().values()]


def test_training_has_eagers_outputs_gradients_and_buffers() -> None:
    # GIVEN a module and its twin WHEN one is trained through graphs
    model, twin = twins(Net)
    step = pgk.parameterize(model)
    ours, theirs = train(step, model), train(twin, twin)
    # THEN outputs, gradients, parameters, running statistics and random numbers are the same bits
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert [(row.graph.split()[0], row.graphed, row.launches) for row in pgk.report(step).rows] == [
        ("forward", True, 4),
        ("backward", True, 4),
    ]


def test_a_module_in_inference_sees_moved_parameters_and_its_mode() -> None:
    # GIVEN a parameterized module in inference
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    model.eval()
    step = pgk.parameterize(model)
    with torch.no_grad():
        for seed in range(6):
            # WHEN parameters move: in place, by ``.data``, by loading, by replacing
            if seed == 2:
                model.first.bias.data = randn(12)
            if seed == 3:
                model.load_state_dict({k: v.clone() + 1 for k, v in model.state_dict().items()})
            if seed == 4:
                model.first.bias = nn.Parameter(randn(12))
            x = randn(3, 6, seed=seed)
            # THEN today's are read
            assert equal(step(x), model(x))
        assert launches(step) == 5
        # AND training mode is another trace, which draws and updates as eager does
        model.train()
        twin = copy.deepcopy(model)
        for seed in range(3):
            x = randn(3, 6, seed=seed)
            found = step(x)
            randn(3, 6, seed=seed)
            assert equal(found, twin(x))
        assert all(map(torch.equal, (b.cpu() for b in model.buffers()), (b.cpu() for b in twin.buffers())))
    assert repr(step) == "Parameterized(Net, 2 traces)"


def test_attributes_closures_and_globals_that_change_are_seen() -> None:
    # GIVEN functions whose numbers are not arguments
    drop, power = nn.Dropout(0.5), 2
    linear = nn.Linear(4, 4).to(DEVICE)

    def run(x: Tensor) -> Tensor:
        result: Tensor = drop(linear(x)) ** power
        return result

    step = pgk.parameterize(run)
    for number, p in [(2, 0.5), (3, 0.5), (3, 0.1), (2, 0.5)] * 2:
        # WHEN these change THEN so does the result, gradients of modules that a function names included
        power, drop.p = number, p
        results = []
        for call in (step, run):
            x = randn(3, 4, seed=number)
            call(x).sum().backward()
            assert linear.weight.grad is not None
            results.append(linear.weight.grad.cpu())
            linear.zero_grad()
        assert torch.equal(*results)
    assert launches(step) == 2 * (8 - 3)


def test_parts_and_hooks_that_change_are_seen() -> None:
    # GIVEN a parameterized module
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False)).to(DEVICE)
    step = pgk.parameterize(model)

    def same() -> bool:
        with torch.no_grad():
            return all(equal(step(x), model(x)) for x in (randn(2, 4), randn(2, 4), randn(2, 4)))

    assert same()
    # WHEN hooks come and go, and parts are added, replaced, tied and untied THEN results are eager's
    hook = model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    assert same()
    hook.remove()
    assert same()
    model[1].bias = nn.Parameter(randn(4))
    assert same()
    model[0] = nn.Linear(4, 4).to(DEVICE)
    assert same()
    model.append(nn.Tanh())
    assert same()
    model[0].weight = model[1].weight
    assert same()
    model[0].weight = nn.Parameter(randn(4, 4))
    assert same()
    model[0], model[1] = model[1], model[0]
    assert same()
    assert launches(step) > 0
    # AND the same for a function that names another module now
    outer = pgk.parameterize(lambda x: model(x))
    for _ in range(2):
        model = nn.Sequential(nn.Linear(4, 4)).to(DEVICE)
        assert all(equal(outer(x), model(x)) for x in (randn(2, 4), randn(2, 4)))
    gc.collect()  # the traces of the first model
    assert launches(outer) == 1


def test_views_and_writes_into_inputs_that_share_memory() -> None:
    # GIVEN a function that writes into one input and returns views and inputs
    def run(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        a.t().mul_(2)
        return a, b[1:], a * b

    step = pgk.parameterize(run)
    for first, second in [(0, 0), (0, 2), (4, 2), (0, 8), (8, 0), (2, 4)] * 2:
        # WHEN inputs overlap, each time in another way
        ours, theirs = torch.arange(12.0).to(DEVICE), torch.arange(12.0).to(DEVICE)
        found = step(ours[first : first + 4].view(2, 2), ours[second : second + 4].view(2, 2))
        expected = run(theirs[first : first + 4].view(2, 2), theirs[second : second + 4].view(2, 2))
        # THEN results, what was written, and whose memory the results are, are eager's
        assert equal(found, expected)
        assert torch.equal(ours.cpu(), theirs.cpu())
        assert [t.data_ptr() - ours.data_ptr() for t in found[:2]] == [
            t.data_ptr() - theirs.data_ptr() for t in expected[:2]
        ]
    same = torch.arange(4.0).to(DEVICE).view(2, 2)
    result = step(same, same)
    assert result[0] is same
    # AND it says that it is not launched, as one tensor stands for both and offsets count from a storage's beginning
    assert reasons(step)
    assert launches(step) > 0  # the one that is given twice, and those that lie apart


def test_grad_mode_autocast_and_retained_graphs() -> None:
    # GIVEN a parameterized module
    linear, twin = twins(lambda: nn.Linear(4, 4))
    step = pgk.parameterize(linear)
    for _ in range(3):
        x = randn(2, 4)
        # WHEN switches change THEN results are eager's
        with torch.no_grad():
            assert equal(step(x), twin(x))
        with torch.inference_mode():
            assert equal(step(x), twin(x))
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(DEVICE.type, dtype=dtype):
                assert equal(step(x), twin(x))
        # AND a graph may be walked twice
        for call in (step, twin):
            loss = call(x).tanh().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        assert equal([p.grad for p in linear.parameters()], [p.grad for p in twin.parameters()])
    linear.weight.requires_grad_(False)
    twin.weight.requires_grad_(False)
    linear.zero_grad()
    step(randn(2, 4)).sum().backward()
    assert linear.weight.grad is None
    assert linear.bias.grad is not None


def test_checkpointing_and_custom_functions_are_traced() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 3

    # GIVEN a checkpointed model with a backward of its own
    double: Callable[[Tensor], Tensor] = Double.apply
    model, twin = twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))

    def make(inner: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.utils.checkpoint.checkpoint(inner, double(x), use_reentrant=False)

    step, eager = pgk.parameterize(make(model)), make(twin)
    for seed in range(3):
        grads = []
        for call, owner in ((step, model), (eager, twin)):
            x = randn(2, 4, seed=seed).requires_grad_()
            call(x).sum().backward()
            grads.append([x.grad, *(p.grad for p in owner.parameters())])
        # THEN gradients are eager's
        assert equal(*grads)
    assert launches(step) == 2 * 2


class Counter(nn.Module):
    """Assigns a buffer and a number, which a graph cannot do again."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.calls = what, 0
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "buffer":
            self.mean = self.mean * 0.5 + x.mean(0)
        else:
            self.calls += 1
        return x + self.mean


def test_dropout_under_checkpointing() -> None:
    # GIVEN checkpoints that are to draw the same random numbers again, and the same model without
    model, twin = twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)))
    step = pgk.parameterize(lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False))
    for seed in range(3):
        for call in (step, twin):
            call(randn(2, 4, seed=seed)).sum().backward()
        # THEN gradients are those without checkpoints
        assert equal([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert launches(step) == 2 * 2


@pytest.mark.parametrize("drops", [True, False])
def test_a_checkpoint_that_draws_again_runs_as_it_is(drops: bool) -> None:
    # GIVEN a checkpoint whose backward draws other random numbers, if it draws any
    inner = nn.Dropout(0.5) if drops else nn.Tanh()

    def function(x: Tensor) -> Tensor:
        again: Callable[..., Tensor] = torch.utils.checkpoint.checkpoint
        return again(lambda y: inner(y * 2) * y, x, use_reentrant=False, preserve_rng_state=False)

    step = pgk.parameterize(function)
    for seed in range(3):
        found = []
        for call in (step, function):
            x = randn(64, seed=seed).requires_grad_()
            pgk.cuda.manual_seed(seed)
            y = call(x)
            y.sum().backward()
            found.append([y, x.grad])
        # THEN results and gradients are eager's
        assert equal(*found)
    # THEN it is launched where it draws none
    assert launches(step) == (0 if drops else 2 * 2)
    assert any("preserve_rng_state" in str(each) for each in reasons(step)) == drops


def test_a_backward_that_draws_runs_as_it_is() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * torch.rand_like(grad)

    # GIVEN a backward that draws random numbers: perhaps the forward's again, with the generator put back
    noisy: Callable[[Tensor], Tensor] = Noisy.apply
    step = pgk.parameterize(lambda x: noisy(x))
    for seed in range(3):
        grads = []
        for call in (step, noisy):
            x = randn(2, 4, seed=seed).requires_grad_()
            call(x).sum().backward()
            grads.append(x.grad)
        # THEN it is not graphed, gradients are eager's, and the report says why
        assert equal(*grads)
    assert [text.split(" (")[0] for text in reasons(step)] == ["its backward draws random numbers"]


HIDDEN = torch.ones(3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: lambda x: x * x.sum().item(),
            "the host needs a value that is on the device: aten._local_scalar_dense",
        ),
        (lambda: lambda x: x[x > 0], "the host needs a value that is on the device: aten.nonzero"),
        (lambda: lambda x: x + 1 if x.sum() > 0 else x, "the host needs a value that is on the device"),
        (lambda: lambda x: x * HIDDEN, "it uses a tensor that is no argument and no member of a module"),
        (lambda: Counter("buffer").to(DEVICE), "the call assigns mean, which a graph would not do again"),
        (lambda: Counter("number").to(DEVICE), "the call assigns Counter.calls, which a graph would not do again"),
        (lambda: lambda x: (x, object), "it returns a type, and a graph returns tensors and plain values only"),
    ],
    ids=["item", "shape", "branch", "hidden", "buffer", "attribute", "result"],
)
def test_what_cannot_be_traced_runs_as_it_is_with_a_reason(
    make: Callable[[], Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a function that no graph can hold WHEN it is called through us
    monkeypatch.setitem(globals(), "HIDDEN", torch.ones(3).to(DEVICE))
    fn = make()
    twin = copy.deepcopy(fn)
    step = pgk.parameterize(fn, randn(2, 3))
    for seed in range(3):
        x = randn(2, 3, seed=seed)
        # THEN every result, and what is left in the module, is eager's
        assert equal(step(x), twin(x))
    if isinstance(fn, Counter):
        assert fn.calls == twin.calls
        assert torch.equal(fn.mean.cpu(), twin.mean.cpu())
    # AND the report says why, in one line
    assert len(reasons(step)) == 1
    assert reasons(step)[0].startswith(text)
    assert text in str(pgk.report(step))
    assert pgk.report(step).kernels[0] == 0


def test_work_for_the_host_is_left_out_of_graphs() -> None:
    # GIVEN a function that goes through the host in its middle
    def run(x: Tensor) -> Tensor:
        return (x.sin().cpu() + 1).to(x.device).cos()

    step = pgk.parameterize(run)
    for seed in range(3):
        x = randn(3, seed=seed)
        assert equal(step(x), run(x))
    # THEN what is before and after is graphed, and the report says what is not
    assert [row.graphed for row in pgk.report(step).rows] == [True, True, False]
    assert launches(step) == 4


def test_numbers_without_end_stop_tracing() -> None:
    # GIVEN a number that changes with every call
    step = pgk.parameterize(lambda x, k: x * k)
    x = randn(3)
    for k in range(MAX_TRACES + 3):
        assert equal(step(x, k), x * k)
    # THEN it is traced so often and no more
    assert repr(step).endswith(f"{MAX_TRACES} traces)")
    assert reasons(step) == [
        f"called with more than {MAX_TRACES} sets of shapes and values: keep changing numbers in tensors"
    ]


def test_strange_arguments_run_as_they_are() -> None:
    step = pgk.parameterize(lambda x, other: x + 1)
    x = randn(3)
    assert equal(step(x, object()), x + 1)
    assert equal(step(x, torch.ones(2).to_sparse()), x + 1)
    assert reasons(step) == [
        "an argument is a object: give tensors and plain values, in lists, tuples and dicts",
        "an argument or member is a tensor of layout torch.sparse_coo: only plain ones are traced",
    ]
