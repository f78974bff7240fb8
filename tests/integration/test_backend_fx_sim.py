from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from paramgraph_kit.backend.fx import Run, compile_fx_graph
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split
from tests.integration.fx_models import Cache, LlamaBlock, SmallResNet

# The simulated device runs one aten kernel for one aten operation, eager or compiled: all comparisons are bit for bit.

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

# Autograd counts the devices when it first runs: the simulated one must exist before any test's backward.
DEVICE = driver().device

Compile = Callable[[Any], Any]


@pytest.fixture
def device() -> torch.device:
    return DEVICE


@pytest.fixture
def splits() -> dict[str, Split]:
    return {}


@pytest.fixture
def compiled(splits: dict[str, Split]) -> Iterator[Compile]:
    torch._dynamo.reset()

    def wrap(_graph: str, _region: Region, code: PartitionCode) -> Run:
        return code.run

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        number = len({name.split()[1] for name in splits})
        return compile_fx_graph(
            gm, inputs, wrap, number=number, observe=lambda name, cut, _: splits.update({name: cut})
        )

    yield lambda target: torch.compile(target, backend=backend)
    torch._dynamo.reset()


def host(values: Any) -> list[Tensor]:
    return [value.detach().cpu() for value in values]


def assert_equal(found: Any, expected: Any) -> None:
    for a, b in zip(host(found), host(expected), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (LlamaBlock(), (2, 8, 32)),
        (SmallResNet(), (2, 3, 16, 16)),
        (nn.Sequential(nn.Linear(8, 4), nn.Dropout()), (3, 8)),
    ],
    ids=["llama", "resnet", "dropout"],
)
def test_training_on_the_simulator_equals_eager_there(
    model: nn.Module, size: tuple[int, ...], device: torch.device, compiled: Compile, splits: dict[str, Split]
) -> None:
    # GIVEN a model on the simulated device and its twin
    model = copy.deepcopy(model).to(device)
    twin = copy.deepcopy(model)
    fast = compiled(twin)
    for _ in range(2):
        x = torch.randn(size).to(device)
        # WHEN both take a training step from one seed
        results = []
        for run in (model, fast):
            torch.manual_seed(5)
            y = run(x)
            (y * y).sum().backward()
            results.append(y)
        # THEN outputs, gradients and buffers are the same
        assert_equal(results[1:], results[:1])
        assert_equal([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])
        assert_equal(twin.buffers(), model.buffers())
    # AND forward and backward are one region each, all of it graphed
    assert sorted(splits) == ["backward 0", "forward 0"]
    assert [[region.graphed for region in cut.regions] for cut in splits.values()] == [[True], [True]]


def test_a_cache_on_the_simulator_is_written_in_place(
    device: torch.device, compiled: Compile, splits: dict[str, Split]
) -> None:
    # GIVEN a cache on the device
    model = Cache().to(device)
    twin = copy.deepcopy(model)
    fast = compiled(twin)
    with torch.no_grad():
        for position in (0, 4):
            x, at = torch.randn(1, 4).to(device), torch.tensor([position]).to(device)
            # WHEN both write THEN results and caches agree
            assert_equal([fast(x, at), twin.kept], [model(x, at), model.kept])
    assert [region.graphed for cut in splits.values() for region in cut.regions] == [True] * len(splits)


def test_every_way_to_the_host_is_outside_with_the_users_line(
    device: torch.device, compiled: Compile, splits: dict[str, Split]
) -> None:
    # GIVEN a function that goes to the CPU and back, reads a number, and uses a scalar that lives on the CPU
    def f(x: Tensor, scale: Tensor) -> Tensor:
        y = x.sin()
        z = y.cpu().tanh().to(x.device)
        k = int(y.sum().item())
        return F.dropout(z * scale, 0.5) * k + y

    x, scale = torch.randn(4, 4).to(device), torch.tensor(2.0)
    # WHEN it is compiled and both run from one seed
    with config.patch(capture_scalar_outputs=True):
        fast = compiled(f)
        torch.manual_seed(1)
        found = fast(x, scale)
    torch.manual_seed(1)
    # THEN results are equal, and the work around is graphed in two regions
    assert_equal([found], [f(x, scale)])
    (cut,) = splits.values()
    assert [(region.graphed, region.operations) for region in cut.regions] == [
        (False, ("aten._to_copy",)),
        (True, ("aten.sin", "aten.sum")),
        (False, ("aten._to_copy", "aten.tanh", "aten._to_copy", "aten._local_scalar_dense")),
        (True, ("aten.mul", "aten.native_dropout", "aten.mul", "aten.add")),
    ]
    reasons = [reason for region in cut.regions for reason in region.reasons]
    assert [(reason.code, reason.message) for reason in reasons[:4]] == [
        ("device-copy", "a copy from cpu to sim"),
        ("device-copy", "a copy from sim to cpu"),
        ("cpu-op", "runs on cpu, not on sim"),
        ("device-copy", "a copy from cpu to sim"),
    ]
    texts = [reason.frame.text for reason in reasons if reason.frame is not None and reason.frame.file == __file__]
    assert len(texts) == len(reasons)
    assert texts[1] == "z = y.cpu().tanh().to(x.device)"


def test_constants_and_masked_fills_cost_no_cut(
    device: torch.device, compiled: Compile, splits: dict[str, Split]
) -> None:
    # GIVEN a function with constants written in it and an assignment under a mask
    def f(x: Tensor) -> Tensor:
        y = x.sin() * torch.tensor(3.0)
        y[y > 1] = 1.0
        return y + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)

    x = torch.randn(4, 4).to(device)
    # WHEN it is compiled and run, twice because a constant must survive the first time
    fast = compiled(f)
    # THEN values are eager's and the whole of it is graphed
    assert_equal([fast(x), fast(x)], [f(x), f(x)])
    assert [region.graphed for region in splits["inference 0"].regions] == [True]


def test_intermediates_are_freed_while_the_graph_still_runs(device: torch.device, compiled: Compile) -> None:
    # GIVEN a chain of 1 MiB values through a region on the host, of which only one is returned
    def f(x: Tensor) -> Tensor:
        y = (x.sin() + 1).cos()
        return y.cpu().to(x.device).tanh() * 2

    x = torch.randn(512, 512).to(device)
    fast = compiled(f)
    fast(x)
    before = driver().memory()[0]
    # WHEN it runs
    y = fast(x)
    # THEN nothing but the result stays allocated
    assert driver().memory()[0] - before == y.numel() * y.element_size()


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x + torch.randn_like(x))
        q = x.view(1, 2, 4, 3)
        return F.dropout(x, 0.5) + F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).reshape(4, 6)


def test_random_numbers_under_checkpointing_are_the_same_in_the_backward(compiled: Compile) -> None:
    # GIVEN a checkpointed block that draws
    torch.manual_seed(0)
    block = Noisy().to(DEVICE)

    def call(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(block, x, use_reentrant=False)
        return found.sin()

    # WHEN it is trained, compiled and eager
    results = []
    for run in (compiled(call), call):
        for n in range(3):
            torch.manual_seed(n)
            x = torch.linspace(-1, 1, 24, device=DEVICE).view(4, 6).requires_grad_()
            y = run(x)
            y.sum().backward()
            gradients = [x.grad, *(p.grad for p in block.parameters())]
            results.append([y, *(g.clone() for g in gradients if g is not None), torch.rand(3, device=DEVICE)])
            block.zero_grad()

    # THEN all numbers are the same, those that are drawn next, too
    for found, expected in zip(results[:3], results[3:], strict=True):
        assert all(map(torch.equal, found, expected))
