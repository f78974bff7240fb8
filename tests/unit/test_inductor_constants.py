"""Inductor traces graphs whose constants are kept beside them, as real tensors among fake ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from paramgraph_kit.backend import inductor
from paramgraph_kit.backend.inductor import _real_constants
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Options
from paramgraph_kit.partition.fixed import Kept

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def graph_with_a_constant() -> fx.GraphModule:
    """``x * constant``, the constant an attribute of the module."""
    graph = fx.Graph()
    x, kept = graph.placeholder("x"), graph.get_attr("kept")
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, kept)),))
    root = torch.nn.Module()
    root.register_buffer("kept", torch.arange(4.0))
    return fx.GraphModule(root, graph)


def compiling() -> tuple[list[CompiledGraph], Any]:
    """A backend that compiles with Inductor for the CPU, and the graphs that it will have made."""
    graphs: list[CompiledGraph] = []

    def new_graph(phase: str) -> CompiledGraph:
        graphs.append(CompiledGraph(phase))
        return graphs[-1]

    device: Any = SimpleNamespace(device=torch.device("cpu"))

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return inductor.compile_with_inductor(module, inputs, new_graph, device, Options())

    return graphs, backend


def test_a_graph_with_a_kept_constant_is_traced() -> None:
    # GIVEN a graph with fake inputs and a real constant, which Inductor's tracing refuses
    mode = torch_name("FakeTensorMode")()
    inputs = [mode.from_tensor(torch.ones(3, 4))]
    module = graph_with_a_constant()
    with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        torch_name("fake_tensor_prop")(module, inputs)

    # WHEN it is traced as our compilations are THEN it is not refused, and afterwards others are again
    with _real_constants(inputs):
        torch_name("fake_tensor_prop")(module, inputs)
    assert not mode.allow_non_fake_inputs


def test_where_inductor_does_not_take_constants_the_graph_is_compiled_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN constants with which no compilation succeeds
    def spoil(module: torch.fx.GraphModule, _device_type: str, **_: Any) -> list[Kept]:
        (product,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
        product.target = object
        return [Kept(4)]

    monkeypatch.setattr(inductor, "keep_fixed", spoil)
    graphs, backend = compiling()

    # WHEN compiled THEN it runs, and nothing is said to be kept
    torch._dynamo.reset()
    x = torch.randn(4, 4)
    assert torch.equal(torch.compile(torch.mm, backend=backend)(x, x), x @ x)
    assert [graph.kept for graph in graphs] == [[]]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_a_graph_without_operations_is_called_as_it_is() -> None:
    # GIVEN a function whose backward only hands its gradient on, compiled
    graphs, backend = compiling()
    torch._dynamo.reset()
    plus = torch.compile(lambda x: x + 1, backend=backend)
    # WHEN it is called, and its backward, again and again THEN both are right
    for k in range(4):
        x = torch.full((3,), float(k), requires_grad=True)
        y = plus(x)
        assert torch.equal(y, x + 1)
        (gradient,) = torch.autograd.grad(y, x, torch.full((3,), 2.0))
        assert torch.equal(gradient, torch.full((3,), 2.0))
    assert [graph.name for graph in graphs] == ["forward", "backward"]
    torch._dynamo.reset()


def test_what_we_compile_leaves_results_on_the_host_where_the_backward_looks_for_them() -> None:
    # GIVEN Inductor's pass that moves numbers to the device, results among them
    inductor._install()
    mover = torch_name("ConstructorMoverPass")
    # WHEN it runs for us THEN results stay, and only then
    token = inductor._active.set(inductor._Compilation())
    try:
        ours = mover("cuda", allow_inputs=True, allow_outputs=True)
    finally:
        inductor._active.reset(token)
    theirs = mover("cuda", allow_inputs=True, allow_outputs=True)
    assert (ours.allow_inputs, ours.allow_outputs) == (True, False)
    assert (theirs.allow_inputs, theirs.allow_outputs) == (True, True)
    # AND code that was cached before is not taken
    assert inductor._config()["custom_should_partition_ops"][-1] == "pgk::results_stay"
