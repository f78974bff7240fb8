from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config
from torch.nn import functional as F

from paramgraph_kit.backend.fx import Run, compile_fx_graph
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split
from tests.integration.fx_models import Cache, LlamaBlock, SmallResNet

# On the CPU the same aten kernels run with and without the backend, so all comparisons are bit for bit.


@dataclass
class Counting:
    """A ``wrap`` that runs every region as it is and notes what it was told and how often it was called."""

    device_type: str = "cpu"
    splits: dict[str, Split] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)

    def backend(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        number = len({name.split()[1] for name in self.splits})
        return compile_fx_graph(gm, inputs, self.wrap, device_type=self.device_type, number=number, observe=self.note)

    def note(self, name: str, cut: Split, _: str) -> None:
        self.splits[name] = cut

    def wrap(self, graph: str, region: Region, code: PartitionCode) -> Run:
        def counted(inputs: list[Any]) -> Any:
            self.calls.append((graph, region.index))
            return code.run(inputs)

        return counted

    def compile(self, target: Any, **settings: Any) -> Any:
        return torch.compile(target, backend=self.backend, **settings)

    def codes(self) -> dict[str, list[str]]:
        return {name: [r.code for g in cut.regions for r in g.reasons] for name, cut in self.splits.items()}


@pytest.fixture
def counting() -> Iterator[Counting]:
    torch._dynamo.reset()
    yield Counting()
    torch._dynamo.reset()


def step(model: Any, *inputs: Tensor) -> list[Tensor]:
    """One training step's output and all gradients, from a fixed seed."""
    torch.manual_seed(7)
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    y = model(*leaves)
    (y * y).sum().backward()
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    return [y.detach(), *(p.grad for p in [*leaves, *parameters] if p.grad is not None)]


def assert_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_inference_is_one_region(counting: Counting) -> None:
    # GIVEN a model without obstacles
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    # WHEN it is compiled and run without gradients
    with torch.no_grad():
        found, expected = counting.compile(model)(x), model(x)
    # THEN the numbers are eager's, and its parameters are inputs as x is
    assert_equal([found], [expected])
    assert counting.calls == [("inference 0", 0)]
    (region,) = counting.splits["inference 0"].regions
    assert region.kernels == 3
    assert len(region.inputs) == 5


@pytest.mark.parametrize(
    ("model", "inputs", "forward", "backward"),
    [
        (LlamaBlock(), (torch.randn(2, 8, 32),), 1, 1),
        (SmallResNet(), (torch.randn(2, 3, 16, 16),), 1, 1),
        (nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.LayerNorm(16)), (torch.randn(3, 4),), 1, 1),
    ],
    ids=["llama", "resnet", "dropout"],
)
def test_training_equals_eager_bit_for_bit(
    counting: Counting, model: nn.Module, inputs: tuple[Tensor, ...], forward: int, backward: int
) -> None:
    # GIVEN a model in training mode and its twin
    twin = copy.deepcopy(model)
    compiled = counting.compile(twin)
    for _ in range(2):
        # WHEN both take a step
        expected = step(model, *inputs)
        found = step(compiled, *inputs)
        # THEN outputs, gradients and buffers are equal, and the whole of both graphs was graphed
        assert_equal(found, expected)
        assert_equal(list(twin.buffers()), list(model.buffers()))
    assert counting.calls == [("forward 0", 0), ("backward 0", 0)] * 2
    assert counting.codes() == {"forward 0": [], "backward 0": []}


def test_running_statistics_are_mutated_inputs(counting: Counting) -> None:
    # GIVEN batch normalisation in training mode, without gradients
    model = nn.BatchNorm1d(4)
    twin = copy.deepcopy(model)
    x = torch.randn(8, 4)
    # WHEN both run twice
    with torch.no_grad():
        compiled = counting.compile(twin)
        for _ in range(2):
            assert_equal([compiled(x)], [model(x)])
    # THEN the buffers follow, written inside the one region
    assert_equal(list(twin.buffers()), list(model.buffers()))
    assert counting.calls == [("inference 0", 0)] * 2


def test_a_cache_is_written_in_place(counting: Counting) -> None:
    # GIVEN a cache and rows for it at changing positions
    model = Cache()
    twin = copy.deepcopy(model)
    compiled = counting.compile(twin)
    with torch.no_grad():
        for position in (0, 3, 5):
            x, at = torch.randn(1, 4), torch.tensor([position])
            # WHEN both write THEN results and caches agree
            assert_equal([compiled(x, at)], [model(x, at)])
            assert_equal([twin.kept], [model.kept])
    # AND one compilation served all positions
    assert len(counting.splits) == 1


def test_outputs_that_alias_inputs_and_one_another(counting: Counting) -> None:
    # GIVEN a function whose outputs share memory in every way
    def f(x: Tensor) -> tuple[Any, ...]:
        y = x.sin()
        return y, y.t(), y[1:], x, x.view(-1), None, y

    x = torch.randn(3, 4)
    # WHEN it is compiled and run
    found, expected = counting.compile(f)(x), f(x)
    # THEN values and sharing are eager's
    tensors = [0, 1, 2, 3, 4, 6]
    assert found[5] is None
    assert_equal([found[i] for i in tensors], [expected[i] for i in tensors])
    for i, j in ((0, 1), (0, 2), (0, 6)):
        assert found[i].untyped_storage().data_ptr() == found[j].untyped_storage().data_ptr()
    assert found[4].data_ptr() == x.data_ptr()


def test_a_graph_break_makes_two_graphs(counting: Counting) -> None:
    # GIVEN a function that Dynamo cannot trace as one
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    x = torch.randn(4)
    # WHEN it is compiled and run
    found = counting.compile(f)(x)
    # THEN both halves are graphed under numbers of their own
    assert_equal([found], [f(x)])
    assert counting.calls == [("inference 0", 0), ("inference 1", 0)]


def test_dynamic_shapes_pass_sizes_as_inputs(counting: Counting) -> None:
    # GIVEN a function compiled with dynamic shapes, in which an intermediate has a size of its own
    def f(x: Tensor) -> tuple[Tensor, int]:
        y = torch.cat((x, x.sin()))
        return y.view(2, -1) * y.shape[0], y.shape[0]

    compiled = counting.compile(f, dynamic=True)
    for rows in (4, 6, 10):
        x = torch.randn(rows, 3)
        # WHEN it is called with several sizes THEN results are eager's
        found, size = compiled(x)
        assert_equal([found], [f(x)[0]])
        assert size == 2 * rows
    # AND one graph served all, told the sizes as numbers
    assert len(counting.splits) == 1
    assert counting.calls == [("inference 0", 0)] * 3


def test_new_static_shapes_are_compiled_anew(counting: Counting) -> None:
    # GIVEN a function compiled without dynamic shapes
    compiled = counting.compile(torch.sin, dynamic=False)
    # WHEN it meets two shapes
    for rows in (2, 3, 2):
        x = torch.randn(rows)
        assert_equal([compiled(x)], [x.sin()])
    # THEN each has a graph
    assert [graph for graph, _ in counting.calls] == ["inference 0", "inference 1", "inference 0"]


def test_a_value_read_by_the_host_is_a_region_between_two(counting: Counting) -> None:
    # GIVEN a training function that reads a number in the middle
    def f(x: Tensor, w: Tensor) -> Tensor:
        h = F.relu(x @ w)
        k = int(h.sum().item())  # here
        return (h * k).tanh()

    x, w = torch.rand(3, 4), torch.rand(4, 4)
    # WHEN it is compiled with Dynamo's permission to trace the read
    with config.patch(capture_scalar_outputs=True):
        compiled = counting.compile(f)
        found = step(compiled, x, w)
    # THEN numbers are eager's, and only the read is outside, at its line
    assert_equal(found, step(f, x, w))
    cut = counting.splits["forward 0"]
    assert [region.graphed for region in cut.regions] == [True, False, True]
    (reason,) = cut.regions[1].reasons
    assert reason.code == "unbacked-op"
    assert reason.frame is not None
    assert reason.frame.file == __file__
    assert reason.frame.text.endswith("# here")
    assert counting.codes()["backward 0"] == []


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 itself drops such a check")
def test_checks_run_with_the_value_that_they_guard(counting: Counting) -> None:
    # GIVEN an assertion on a value that the host reads
    def f(x: Tensor) -> Tensor:
        k = int(x.sum().item())
        torch._check(k >= 0)  # type: ignore[no-untyped-call]
        return x * k

    with config.patch(capture_scalar_outputs=True):
        compiled = counting.compile(f)
        # WHEN it holds and when it does not
        assert_equal([compiled(torch.ones(4))], [torch.full((4,), 4.0)])
        with pytest.raises(RuntimeError, match="assertion failed"):
            compiled(-torch.ones(4))
    # THEN it was checked where the value was read, outside the graphs
    assert "aten._assert_scalar" in counting.splits["inference 0"].regions[1].operations
    # AND nothing that follows it was launched
    assert counting.calls == [("inference 0", 0), ("inference 0", 2), ("inference 0", 0)]


def test_a_size_that_depends_on_data_is_outside(counting: Counting) -> None:
    # GIVEN a function that selects by a mask
    def f(x: Tensor) -> Tensor:
        return (x[x > 0] * 2).sum()

    x = torch.randn(5, 5)
    # WHEN it is compiled with Dynamo's permission to trace such sizes
    with config.patch(capture_dynamic_output_shape_ops=True):
        found = counting.compile(f)(x)
    # THEN the selection alone is ungraphed
    assert_equal([found], [f(x)])
    assert [region.graphed for region in counting.splits["inference 0"].regions] == [True, False, True]


def test_nothing_is_graphed_for_another_device(counting: Counting) -> None:
    # GIVEN a CPU model and a backend that graphs another device's work
    counting.device_type = "cuda"
    x = torch.randn(4)
    # WHEN it is compiled and run
    found = counting.compile(torch.sin)(x)
    # THEN it runs as it is, with the reason
    assert_equal([found], [x.sin()])
    assert counting.calls == []
    assert counting.codes() == {"inference 0": ["cpu-op"]}


def test_partitions_say_what_ran_where(counting: Counting) -> None:
    # GIVEN a compiled function with one obstacle
    def f(x: Tensor) -> Tensor:
        return x.sin() * int(x.sum().item())

    with config.patch(capture_scalar_outputs=True):
        counting.compile(f)(torch.ones(3))
    # WHEN its partitions are listed
    partitions = counting.splits["inference 0"].partitions("inference 0", first=3)
    # THEN they are numbered on, with kernels and reasons
    assert [(p.id, p.graphed, p.kernels, len(p.reasons)) for p in partitions] == [
        (3, True, 2, 0),
        (4, False, 1, 1),
        (5, True, 1, 0),
    ]
