"""What is the same on the host at each call is made once, and no graph is cut for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import paramgraph_kit as pgk
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.partition.fixed import keep_fixed
from tests.integration.launch_bench import DEVICE, moved

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

_TABLE = torch.arange(6)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def written_in_the_code(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]).to(x.device)


def mask_made_on_the_host(x: Tensor) -> Tensor:
    image = torch.zeros(6, 4)
    image[2:4, :] = 1.0
    image[4:, 1:] = 2.0
    mask = image.unsqueeze(0) - image.unsqueeze(1)
    mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
    return x + mask.sum(0).to(x.device)


def positions(x: Tensor) -> Tensor:
    frequencies = 1.0 / (10000 ** (torch.arange(0, 4).float() / 4))
    angles = torch.outer(torch.arange(6).float(), frequencies)
    return x * angles.cos().to(x.device) + x.flip(-1) * angles.sin().to(x.device)


def index_on_the_host(x: Tensor) -> Tensor:
    order = torch.arange(6).flip(0)
    return x[order] * 2


def scale_on_the_host(x: Tensor) -> Tensor:
    return x * torch.log(torch.tensor(1.0 / 0.01)) * torch.tensor(math.pi)


def cast_on_the_way(x: Tensor) -> Tensor:
    return x + torch.ones(4, dtype=torch.float64).cumsum(0).to(x.device, torch.float32)


def used_twice(x: Tensor) -> Tensor:
    table = torch.linspace(0, 1, 4)
    return x * table.to(x.device) + (x - 1) * table.to(x.device)


def product_on_the_host(x: Tensor) -> Tensor:
    table = torch.linspace(0, 1, 16).view(4, 4)
    return x @ (table @ table.mT).to(x.device)


FIXED = [written_in_the_code, mask_made_on_the_host, positions, index_on_the_host, scale_on_the_host, cast_on_the_way,
         used_twice, product_on_the_host]  # fmt: skip


@pytest.mark.parametrize("function", FIXED)
@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
def test_fixed_tensors_of_the_host_are_made_once(
    function: Callable[[Tensor], Tensor], compile_: Callable[[Any], Any]
) -> None:
    # GIVEN a function that makes the same tensor on the host at each call
    fast = compile_(function)
    for call in range(3):
        # WHEN it is launched THEN numbers are eager's
        x = moved(6, 4, seed=call)
        assert same_bits(fast(x), function(x))
    # AND nothing runs outside of its graph, and the report says what is kept
    report = pgk.report(fast)
    assert [row.graphed for row in report.rows] == [True]
    assert report.reasons == ()
    assert bool(report.kept) is (function is not scale_on_the_host)  # single numbers are no tensors to keep
    assert ("made once, on the device" in str(report)) is bool(report.kept)


def chosen_columns(x: Tensor) -> Tensor:
    return x[:, torch.tensor([3, 1, 1])].sin()


def put_in_rows(x: Tensor) -> Tensor:
    return x.index_put((torch.arange(0, 6, 2),), x[1::2].cos(), accumulate=True) * x


def two_made_of_one(x: Tensor) -> Tensor:
    order = torch.arange(4).flip(0)
    return x[:4][order].exp() * x.sigmoid()[:, order][2:]


@pytest.mark.parametrize("function", [index_on_the_host, chosen_columns, put_in_rows, two_made_of_one])
def test_an_index_of_the_host_is_made_once_for_the_backward_as_well(function: Callable[[Tensor], Tensor]) -> None:
    # GIVEN a function whose backward needs the index that its forward makes on the host
    fast = pgk.parameterize(function)
    for call in range(4):
        # WHEN it is trained THEN results and gradients are eager's
        ours, theirs = (moved(6, 4, seed=call).requires_grad_() for _ in range(2))
        for made in ((y := fast(ours)), (z := function(theirs))):
            made.square().sum().backward()
        assert same_bits(y, z)
        assert same_bits(ours.grad, theirs.grad)
    # AND forward and backward are launched whole
    report = pgk.report(fast)
    assert [(row.graph.split()[0], row.graphed) for row in report.rows] == [("forward", True), ("backward", True)]
    assert report.reasons == ()
    assert report.kept


def test_an_index_that_is_also_a_result_is_the_callers() -> None:
    # GIVEN a function that returns the index that it picks by
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.arange(5, -1, -1)
        return x[order].sin(), order

    fast = pgk.parameterize(function)
    for call in range(4):
        x = moved(6, 4, seed=call).requires_grad_()
        y, order = fast(x)
        expected = function(x)[0]
        # WHEN its caller writes to it before the backward THEN the backward's own is what it was, as is the next call's
        assert (order.device.type, order.tolist()) == ("cpu", [5, 4, 3, 2, 1, 0])
        order.zero_()
        assert same_bits(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])
        assert same_bits(y, expected)


def test_the_report_names_the_line_that_made_it() -> None:
    # GIVEN a compiled function with one such tensor WHEN reported THEN with size and line
    def function(x: Tensor) -> Tensor:
        return x * torch.tensor([4.0, 3.0, 2.0, 1.0]).to(x.device)

    fast = pgk.compile(function)
    fast(moved(6, 4))
    (kept,) = pgk.report(fast).kept
    assert kept.nbytes == 16
    assert kept.frame is not None
    assert kept.frame.text == "return x * torch.tensor([4.0, 3.0, 2.0, 1.0]).to(x.device)"
    line = f"1 tensors of the host, 16 B (test_fixed_sim.py:{kept.frame.line})"
    assert line in str(pgk.report(fast))


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    table = torch.arange(4.0).to(x.device)
    return x * table, table.view(2, 2)


def test_a_tensor_that_the_caller_gets_is_a_new_one_each_time() -> None:
    # GIVEN a function that returns such a tensor, or a view of it
    fast = pgk.compile(returned)
    for call in range(3):
        x = moved(6, 4, seed=call)
        found, expected = fast(x), returned(x)
        assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
        # WHEN the caller writes to it THEN the next call does not see that
        found[1].fill_(99.0)


def with_a_number(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, torch.tensor(32).to(x.device)


@pytest.mark.parametrize("function", [returned, with_a_number])
def test_a_tensor_that_the_caller_gets_is_made_by_the_graph(function: Callable[[Tensor], Any]) -> None:
    # GIVEN a function that returns such a tensor, as models with a cache return their window's length
    fast = pgk.compile(function)

    # WHEN it is called
    for call in range(3):
        fast(moved(6, 4, seed=call))

    # THEN its copy is one of the graph's kernels, not one that each call launches besides
    row = pgk.report(fast).rows[-1]
    assert (row.kernels, row.nodes) == (2, 2)


def random_on_the_host(x: Tensor) -> Tensor:
    return x + torch.rand(4).to(x.device)


def from_an_argument(x: Tensor, host: Tensor) -> Tensor:
    return x + (host * 2).to(x.device)


def uninitialised(x: Tensor) -> Tensor:
    return x + (torch.empty(4) * 0).to(x.device).nan_to_num()


def test_what_may_change_is_made_at_each_call() -> None:
    # GIVEN a random tensor of the host, one that is an argument's, and one that nobody initialised
    x, host = moved(6, 4), torch.ones(4)
    for function, inputs in ((random_on_the_host, (x,)), (from_an_argument, (x, host)), (uninitialised, (x,))):
        fast = pgk.compile(function)
        for call in range(3):
            host.fill_(call)
            torch.manual_seed(call)
            found = fast(*inputs)
            torch.manual_seed(call)
            # WHEN called THEN today's is used, and the copy is outside
            assert same_bits(found, function(*inputs))
        report = pgk.report(fast)
        assert report.kept == ()
        assert "device-copy" in {reason.code for reason in report.reasons}


def test_a_buffer_on_the_host_may_change() -> None:
    # GIVEN a module with a buffer that stayed on the host, which code changes between calls
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Buffer(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table.to(x.device)

    model = Scaled()
    fast = pgk.compile(model)
    for call in range(3):
        model.table.fill_(call)
        x = moved(6, 4, seed=call)
        # WHEN called THEN today's values count
        assert same_bits(fast(x), x * model.table.to(DEVICE))


def test_training_with_fixed_masks_gives_eager_s_gradients() -> None:
    # GIVEN a loss that uses a mask and a position table of the host
    def loss(x: Tensor) -> Any:
        return (mask_made_on_the_host(positions(x)) ** 2).sum()

    fast = pgk.compile(loss)
    for call in range(3):
        a, b = (moved(6, 4, seed=call).requires_grad_() for _ in range(2))
        fast(a).backward()
        loss(b).backward()
        # WHEN trained THEN gradients are eager's, and all of it is graphed
        assert same_bits(a.grad, b.grad)
    assert all(row.graphed for row in pgk.report(fast).rows)


@pytest.mark.parametrize("numbers", [False, True])
def test_single_numbers_stay_on_the_host_where_that_is_asked_for(numbers: bool) -> None:
    # GIVEN a graph as AOTAutograd hands it to Inductor, which works out a number on the host
    graphs: list[Any] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch.compile(scale_on_the_host, backend=aot_autograd(fw_compiler=keep))(moved(6, 4))
    (module,) = graphs
    before = str(module.graph)
    # WHEN fixed tensors are kept THEN the graph is as it was, unless numbers are wanted too
    assert keep_fixed(module, DEVICE.type, numbers=numbers) == []
    assert (str(module.graph) == before) is not numbers


def test_a_fixed_factor_is_saved_for_the_backward() -> None:
    # GIVEN a product with a table of the host, made once, in inference mode or not
    compiled = torch.compile(written_in_the_code, backend="paramgraph")
    with torch.inference_mode():
        compiled(moved(6, 4))
    for seed in range(3):
        x = moved(6, 4, seed=seed).requires_grad_()
        # WHEN trained THEN the gradient is the table
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        assert gradient.tolist() == [[1.0, 2.0, 3.0, 4.0]] * 6


def test_what_is_made_of_an_input_is_not_fixed() -> None:
    # GIVEN a cast of an input beside one of a table of the host
    def cast(x: Tensor) -> Tensor:
        return x.to(torch.float64) * torch.ones(4, dtype=torch.float64).to(x.device)

    compiled = torch.compile(cast, backend="paramgraph")
    # WHEN called with others THEN each call computes its own
    for seed in range(3):
        assert compiled(moved(6, 4, seed=seed)).tolist() == moved(6, 4, seed=seed).double().tolist()


def test_what_is_moved_is_kept_and_no_step_on_the_host_before_it() -> None:
    # GIVEN a table that is cast on the host and then moved to the device
    graphs: list[Any] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    def cast_and_moved(x: Tensor) -> Tensor:
        return x + torch.arange(4).to(torch.float32).to(x.device)

    torch.compile(cast_and_moved, backend=aot_autograd(fw_compiler=keep))(moved(6, 4))
    (module,) = graphs
    # WHEN fixed tensors are kept THEN it is one constant, on the device, and nothing of the host is left
    kept = keep_fixed(module, DEVICE.type)
    assert [each.nbytes for each in kept] == [16]
    constants = [n for n in module.graph.nodes if n.op == "get_attr"]
    assert [n.meta["val"].device.type for n in constants] == [DEVICE.type]
    assert all(n.op != "call_function" or n.meta["val"].device.type == DEVICE.type for n in module.graph.nodes)
