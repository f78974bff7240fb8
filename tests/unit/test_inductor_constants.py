"""Inductor traces graphs whose constants are kept beside them, as real tensors among fake ones."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from paramgraph_kit.backend.inductor import _real_constants
from paramgraph_kit.driver.torch_names import torch_name

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def graph_with_a_constant() -> fx.GraphModule:
    """``x * constant``, the constant an attribute of the module."""
    graph = fx.Graph()
    x, kept = graph.placeholder("x"), graph.get_attr("kept")
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, kept)),))
    root = torch.nn.Module()
    root.register_buffer("kept", torch.arange(4.0))
    return fx.GraphModule(root, graph)


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
