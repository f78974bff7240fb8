from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from paramgraph_kit.driver.torch_names import NAMES, torch_name
from paramgraph_kit.partition.normalize import normalized
from paramgraph_kit.partition.rules import reason, reasons_for

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: tuple[tuple[int, ...], str, torch.dtype]) -> torch.fx.GraphModule:
    """Trace ``function`` on fake tensors: a GPU is not needed to decide what a GPU may graph."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        return make_fx(function)(*(torch.empty(size, device=device, dtype=kind) for size, device, kind in inputs))


GPU = ((4, 4), "cuda", torch.float32)
HALF = ((4, 4), "cuda", torch.bfloat16)
WAITS = "the host must wait for a value or a size that the device computes"
MASK = ((4, 4), "cuda", torch.bool)
HOST = ((4, 4), "cpu", torch.float32)
SCALAR = ((), "cpu", torch.float32)


def codes(module: torch.fx.GraphModule, device_type: str = "cuda") -> list[tuple[str, str, str]]:
    return [(r.code, r.operation, r.message) for r in reasons_for(module, device_type)]


def test_work_views_and_sizes_on_the_device_have_no_reason() -> None:
    # GIVEN kernels, views, a creation, an in-place write and arithmetic on sizes, all on the device
    def f(x: torch.Tensor) -> Any:
        y = (x @ x.t()).view(-1).narrow(0, 0, x.shape[0] * 2)
        return aten.copy_.default(y, torch.ones(8, device=y.device)).relu()

    # WHEN the rules are asked THEN nothing stands in the way
    assert reasons_for(traced(f, GPU), "cuda") == []


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda x: x.cpu(), [GPU], ("device-copy", "aten._to_copy", "a copy from cuda to cpu")),
        (lambda c: c.to("cuda:0"), [HOST], ("device-copy", "aten._to_copy", "a copy from cpu to cuda")),
        (lambda x, c: aten.copy_.default(x, c), [GPU, HOST], ("device-copy", "aten.copy_", "a copy from cpu to cuda")),
        (lambda x: torch.zeros(3), [GPU], ("cpu-op", "aten.zeros", "runs on cpu, not on cuda")),
        (lambda c: c + c, [HOST], ("cpu-op", "aten.add", "runs on cpu, not on cuda")),
        (lambda x, s: x * s, [GPU, SCALAR], ("device-copy", "aten._to_copy", "a copy from cpu to cuda")),
        (lambda x, s: x * s, [HALF, SCALAR], ("cpu-op", "aten.mul", "reads a cpu tensor of shape [] from cuda")),
        (
            lambda x: x.sum().item(),
            [GPU],
            ("unbacked-op", "aten._local_scalar_dense", WAITS),
        ),
        (
            lambda x, m: aten.index_put.default(x, [m], torch.zeros(4, device=x.device)),
            [GPU, MASK],
            ("unsafe-op", "aten.index_put", "a mask as index: the host must wait for the number of its true elements"),
        ),
    ],
)
def test_each_rule_names_its_code_operation_and_message(
    function: Callable[..., Any], inputs: list[Any], expected: tuple[str, str, str]
) -> None:
    # GIVEN a function with one operation that a graph cannot hold
    module = traced(function, *inputs)
    # WHEN the reasons are asked for THEN there is exactly that one
    assert codes(module) == [expected]


@pytest.mark.parametrize("function", [torch.nonzero, lambda x: torch.masked_select(x, x > 0)])
def test_sizes_that_depend_on_data_are_unbacked(function: Callable[..., Any]) -> None:
    # GIVEN an operation whose result has a size that only its data tells
    module = traced(function, HOST)
    # WHEN the CPU is the device that graphs, so that nothing else can be the reason
    found = codes(module, "cpu")
    # THEN the size is
    assert [code for code, _, _ in found] == ["unbacked-op"]


def test_an_index_on_the_cpu_is_an_operand_of_its_own_kind() -> None:
    # GIVEN a device tensor indexed by a CPU tensor
    module = traced(lambda x, i: aten.index.Tensor(x, [i]), GPU, ((2,), "cpu", torch.int64))
    # WHEN the reasons are asked for THEN they show the tensor to move
    assert codes(module) == [("cpu-op", "aten.index", "reads a cpu tensor of shape [2] from cuda")]


def test_a_value_of_the_host_is_no_fill_unless_it_is_a_number() -> None:
    # GIVEN one value for what a mask selects, on the host: a tensor of one element, and a number
    def filled(*size: int) -> torch.fx.GraphModule:
        return traced(lambda x, m: aten.index_put.default(x, [m], torch.ones(size)), GPU, MASK)

    # WHEN asked THEN only the number becomes a masked fill: torch refuses the other
    with pytest.raises(RuntimeError, match="device"):
        filled(1)
    assert codes(filled()) == []


def test_filling_under_a_mask_needs_no_cut_and_constants_are_on_the_device() -> None:
    # GIVEN x[mask] = 1.0, whose value is a constant on the CPU
    constant = torch.tensor(1.0)
    module = traced(lambda x, m: aten.index_put.default(x, [m], constant), GPU, MASK)
    # WHEN the reasons are asked for THEN there is none, as Inductor fills instead of counting
    assert codes(module) == []


def test_a_number_of_the_host_is_moved_for_the_device_and_stays_for_others() -> None:
    # GIVEN a number made on the host that a device operation reads, and another one too or not
    def kept(x: torch.Tensor, number: torch.Tensor) -> Any:
        twice = number * 2
        return x * twice, twice

    def moved(x: torch.Tensor, number: torch.Tensor) -> Any:
        return (x * (number * 2),)

    for function in (kept, moved):
        module = traced(function, GPU, SCALAR)
        # WHEN the graph is made ready THEN one operation of its own moves it
        nodes = {n.name: n.meta["val"].device.type for n in normalized(module, "cuda")[0].graph.nodes if n.meta}
        assert nodes == {"x_1": "cuda", "number_1": "cpu", "mul": "cpu", "_to_copy_default": "cuda", "mul_1": "cuda"}


def test_control_flow_is_told_from_a_body_that_merely_contains_something() -> None:
    # GIVEN a torch.cond
    def f(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    # WHEN the reasons are asked for
    found = codes(traced(f, HOST), "cpu")
    # THEN it is the branch itself
    assert found == [("control-flow", "cond", "a branch or loop on the value of a tensor")]


def test_tagged_and_listed_operations_are_unsafe_or_custom() -> None:
    # GIVEN an operation tagged as unsafe, and one that the user asks Inductor to leave out
    with torch.library._scoped_library("pgk_rules", "DEF") as library:
        library.define("peek(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
        library.impl("peek", torch.clone, "CompositeExplicitAutograd")
        module = traced(lambda x: torch.ops.pgk_rules.peek(x).relu().sin(), HOST)
        # WHEN the reasons are asked for with that setting
        with config.patch(custom_should_partition_ops=["aten::relu"]):
            found = codes(module, "cpu")
    # THEN both are found, each under its own code
    assert found == [
        ("unsafe-op", "pgk_rules.peek", "torch lists it as unsafe in CUDA graphs"),
        ("custom-op", "aten.relu", "listed in torch._inductor.config.custom_should_partition_ops"),
    ]


OFFSETS = ((2,), "cuda", torch.int32)
EXPERTS = ((2, 4, 4), "cuda", torch.float32)
RANGE = "reads the least and the largest value on the host: give min and max"
GROUPS = "reads the groups' offsets on the host: only bfloat16 has one kernel"
SOLVER = "MAGMA's batched solver copies from the host"


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (lambda x: torch.histc(x, 8), [GPU], RANGE),
        (lambda x: torch.histc(x, 8, min=2, max=2), [GPU], RANGE),
        (lambda x: torch.histc(x, 8, 0, 1), [GPU], None),
        (lambda x: torch.normal(x, x), [GPU], "reads on the host whether any deviation is negative"),
        (lambda x: torch.normal(x, 2.0), [GPU], None),
        (lambda x: aten._linalg_eigh.default(x)[0], [GPU], "cuSOLVER's eigensolver cannot be captured"),
        (lambda x: aten._cholesky_solve_helper.default(x, x, False), [EXPERTS], SOLVER),
        (lambda x: aten._cholesky_solve_helper.default(x, x, False), [GPU], None),
    ],
)
def test_operations_that_wait_inside_of_themselves_are_left_out(
    function: Callable[..., Any], inputs: list[Any], why: str | None
) -> None:
    # GIVEN an operation that torch does not list, called so that it waits for the device or so that it does not
    module = traced(function, *inputs)
    # WHEN the rules are asked THEN the first is left out with what it waits for
    assert [(code, text) for code, _, text in codes(module)] == ([("unsafe-op", why)] if why else [])


@pytest.mark.parametrize(("capability", "why"), [((9, 0), None), ((10, 0), None), ((8, 9), GROUPS), ((12, 0), GROUPS)])
def test_experts_are_one_kernel_where_the_device_has_it(
    capability: tuple[int, int], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a grouped product in the one type that has a kernel of its own, on devices with and without it
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    kinds = [((16, 16), "cuda", torch.bfloat16), ((2, 16, 16), "cuda", torch.bfloat16)]
    module = traced(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends), *kinds, OFFSETS)
    # WHEN the rules are asked THEN it is left out where it reads its groups on the host
    assert [text for _, _, text in codes(module)] == ([why] if why else [])


@pytest.mark.parametrize("behind", [0, 1])
def test_an_unsafe_operation_that_another_one_runs_is_found_behind_its_token(behind: int) -> None:
    # GIVEN an operation tagged as unsafe, run by a higher-order one that takes it first or behind a token
    with torch.library._scoped_library("pgk_effects", "DEF") as library:
        library.define("peek(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
        library.impl("peek", torch.clone, "CompositeExplicitAutograd")
        module = traced(lambda x: x.relu(), HOST)
        (kernel,) = [node for node in module.graph.nodes if node.op == "call_function"]
        kernel.target = torch._higher_order_ops.effects.with_effects
        kernel.args = (*kernel.args[:behind], torch.ops.pgk_effects.peek.default, *kernel.args)
        # WHEN the reason is asked for THEN it names the operation inside
        found = reason(kernel, "cpu")
    assert found is not None
    assert (found.code, found.message) == ("unsafe-op", "pgk_effects.peek.default is tagged cudagraph_unsafe")


def test_dynamic_shapes_stand_in_the_way_only_when_configured() -> None:
    # GIVEN a graph with a size that is known only while running
    module = traced(lambda x: torch.nonzero(x).relu(), HOST)
    # WHEN the reasons are asked for without and with cudagraph_skip_dynamic_graphs
    default = codes(module, "cpu")
    with config.patch({"triton.cudagraph_skip_dynamic_graphs": True}):
        static_only = codes(module, "cpu")
        static = codes(traced(lambda x: x.relu(), HOST), "cpu")
    # THEN only the latter holds the size against relu, and nothing against sizes that are known
    assert static == []
    assert [code for code, _, _ in default] == ["unbacked-op"]
    assert [(code, operation) for code, operation, _ in static_only[1:]] == [("dynamic-shape", "aten.relu")]


def test_sizes_from_listed_operations_are_unsafe_to_use() -> None:
    # GIVEN the same graph and nonzero on the list of operations whose sizes are not to be used
    module = traced(lambda x: torch.nonzero(x).relu(), HOST)
    # WHEN the reasons are asked for
    with config.patch(cudagraph_unsafe_unbacked_ops=["aten::nonzero"]):
        found = codes(module, "cpu")
    # THEN relu is out too
    assert [(code, operation) for code, operation, _ in found] == [
        ("unbacked-op", "aten.nonzero"),
        ("unbacked-size", "aten.relu"),
    ]


def test_reasons_carry_the_users_line_and_repeat_only_for_another_line() -> None:
    # GIVEN three copies to the host, two of them from one line
    module = traced(lambda x: (x.cpu(), x.cpu(), x.cpu()), GPU)
    copies = [node for node in module.graph.nodes if node.op == "call_function"]
    for node, line in zip(copies, (7, 7, 8), strict=True):
        node.meta["stack_trace"] = f'  File "train.py", line {line}, in step\n    y = x.cpu()'
    # WHEN all reasons and the first one are asked for
    found = [r.label() for r in reasons_for(module, "cuda")]
    first = reason(copies[0], "cuda")
    # THEN there is one for each line
    text = "a copy from cuda to cpu (aten._to_copy) at train.py:{}  y = x.cpu()"
    assert found == [text.format(7), text.format(8)]
    assert first is not None
    assert first.label() == text.format(7)


def test_a_node_without_metadata_is_left_out() -> None:
    # GIVEN a graph whose shapes were never recorded
    module = traced(lambda x: x.sin(), HOST)
    for node in module.graph.nodes:
        node.meta.clear()
    # WHEN the reasons are asked for THEN nothing is guessed
    assert [code for code, _, _ in codes(module, "cpu")] == ["no-metadata"]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch's own, on importing Inductor
@pytest.mark.parametrize("key", sorted(NAMES))
def test_private_names_of_torch_resolve(key: str) -> None:
    # GIVEN a private name that this package relies on
    entry = NAMES[key]
    # WHEN this torch is asked for it THEN it has it, and the entry says where it was seen and why it is needed
    assert torch_name(key) is not None
    assert entry.seen
    assert entry.why
