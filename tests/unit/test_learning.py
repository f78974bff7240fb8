"""Tensors that learn, whoever holds them."""

from __future__ import annotations

import torch

from paramgraph_kit.doctor.observe.learning import learning


def test_a_view_that_says_nothing_of_itself_is_passed_by() -> None:
    # GIVEN a weight, and a view made without gradients whose base has been written with them since
    weight = torch.nn.Parameter(torch.ones(2))
    base = torch.zeros(2)
    with torch.no_grad():
        view = base[:1]
    base.add_(weight)
    # WHEN all that learns is asked for THEN the weight is there, and nothing is raised
    found = [*learning()]
    assert any(each is weight for each in found)
    assert not any(each is view for each in found)
