"""What becomes of numbers that do not fit whole ones, and of division by 0, where CUDA and the CPU are unlike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

DEVICE = pgk.device()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
MOST, LEAST = 2**31 - 1, -(2**31)


def test_what_does_not_fit_becomes_the_nearest_that_does(cuda: Any) -> None:
    # GIVEN numbers that no whole one of 32 bits holds, and such as it does
    numbers = [torch.nan, torch.inf, -torch.inf, 3e9, -3e9, 2.75, -2.75]
    x, graph = torch.tensor(numbers).to(DEVICE), cuda.CUDAGraph()
    with cuda.graph(graph):
        captured = x.int()
    graph.replay()
    # WHEN they are made whole, in a graph or not, THEN it is as CUDA's conversion says
    wanted = [0, MOST, LEAST, MOST, LEAST, 2, -2]
    assert x.int().tolist() == captured.tolist() == wanted
    assert x.double().int().tolist() == [LEAST, *wanted[1:]]
    assert x[:3].long().tolist() == [-(2**63), 2**63 - 1, -(2**63)]
    target = torch.zeros(7, dtype=torch.int32)
    target.copy_(x)  # converted on the device, before it is sent
    assert target.tolist() == wanted


def test_whole_numbers_divided_by_nothing_are_not_known(cuda: Any) -> None:
    # GIVEN a division by 0, which raises nothing on a GPU and gives some number
    x, zero, graph = torch.tensor([5, -5]).to(DEVICE), torch.zeros(2, dtype=torch.long).to(DEVICE), cuda.CUDAGraph()
    # WHEN it is computed, eagerly or by a graph THEN it is said that nobody knows which
    with pytest.raises(NotImplementedError, match="divided by 0 is some number on a GPU"):
        x // zero
    with pytest.raises(NotImplementedError, match="divided by 0"):
        x % 0
    with cuda.graph(graph):
        x % zero
    with pytest.raises(NotImplementedError, match="divided by 0"):
        graph.replay()
    assert (x.float() / zero).tolist() == [torch.inf, -torch.inf]
