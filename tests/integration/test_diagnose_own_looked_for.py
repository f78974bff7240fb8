"""Who looks at all objects of the process for weights that learn: only where something may have learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe import gradients_between
from paramgraph_kit.doctor.observe.learning import learning as all_that_learn

device = pgk.device()
cuda: Any = torch.cuda if device.type == "cuda" else pgk.cuda


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that somebody does."""
    found: list[int] = []

    def learning() -> Iterator[torch.Tensor]:
        found.append(1)
        return all_that_learn()

    monkeypatch.setattr(gradients_between, "learning", learning)
    return found


def serve() -> torch.Tensor:
    with torch.no_grad():
        model, x = torch.nn.Linear(4, 4).to(device), torch.zeros(2, 4, device=device)
        model(x)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            y: torch.Tensor = model(x)
        graph.replay()
        return y.clone()


def by_hand() -> torch.Tensor:
    weight, x = torch.ones(4, 4, device=device, requires_grad=True), torch.ones(2, 4, device=device)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph), torch.no_grad():
        learned: torch.Tensor = x.t() @ (x @ weight)
        weight.grad = learned
    graph.replay()
    return learned.clone()


def test_a_program_that_learns_nothing_is_not_looked_through(looks: list[int]) -> None:
    # GIVEN a program that captures inference WHEN it is diagnosed THEN nobody looks at all objects for gradients
    assert not pgk.diagnose(serve)
    assert not looks


def test_a_program_that_fills_gradients_itself_is(looks: list[int]) -> None:
    # GIVEN one whose capture makes a gradient without a backward pass WHEN it is diagnosed THEN somebody does
    pgk.diagnose(by_hand)
    assert looks
