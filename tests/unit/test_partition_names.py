"""What the inputs of a graph are called, whichever way a version of torch describes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.fx

from paramgraph_kit.partition.names import _by_position, input_names


@pytest.mark.parametrize("name", ["L['x']", lambda: "L['x']"])
def test_a_source_says_its_name_as_a_value_or_when_asked(name: Any) -> None:
    # GIVEN a graph of Dynamo's, of a version whose sources have names, or a method for them
    graph = torch.fx.Graph()
    graph.placeholder("l_x_").meta["grapharg"] = SimpleNamespace(source=SimpleNamespace(name=name))
    graph.output(())

    # WHEN asked THEN the input is called as in the code
    assert input_names(torch.fx.GraphModule(torch.nn.Module(), graph)) == ("x",)


@pytest.mark.parametrize(
    ("name", "found"), [("primals_1", "a"), ("primals_2", "b"), ("primals_3", ""), ("arg0_1", "a"), ("arg1_1", "b")]
)
def test_a_number_of_aotautograd_s_is_a_position(name: str, found: str) -> None:
    assert _by_position(name, ["a", "b"]) == found
