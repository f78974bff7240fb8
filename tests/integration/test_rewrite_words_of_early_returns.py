"""Words for ``if random.random() < p: return a``, ``return b``: of a helper whose caller goes on with either."""

from __future__ import annotations

import random

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()
net = torch.nn.Linear(8, 8).to(DEVICE)


def noise(rows: int, prob: float) -> torch.Tensor:
    if prob > 0 and random.random() < prob:
        return torch.randn(rows, 8, device=DEVICE)
    return torch.zeros(rows, 8, device=DEVICE)


class _Mixing:
    prob = 0.5

    def once(self, x: torch.Tensor) -> torch.Tensor:
        return net(x + noise(4, self.prob))  # type: ignore[no-any-return]

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        a = net(x + noise(4, self.prob))
        return a * noise(4, prob=0.25)  # type: ignore[no-any-return]

    def in_rounds(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = net(x) + noise(4, self.prob)
        return x

    def explored(self, x: torch.Tensor) -> torch.Tensor:
        if random.random() < self.prob:
            return torch.randn(4, 8, device=DEVICE)
        return net(x)  # type: ignore[no-any-return]


def _words(name: str) -> str:
    found = pgk.diagnose(getattr(_Mixing(), name), torch.ones(4, 8, device=DEVICE))
    told = [f.fix for f in found.failures if f.code == "branch-frozen"]
    assert len(told) == 1, found
    return " ".join(told[0].split())


@pytest.mark.parametrize(
    ("name", "asked", "graph"),
    [
        ("once", ("`drawn = bool(self.prob > 0 and random.random() < self.prob)`",), "`graphs[drawn]`"),
        pytest.param(
            "twice",
            (
                "`drawn_1 = bool(self.prob > 0 and random.random() < self.prob)` and then",
                "`drawn_2 = bool(0.25 > 0 and random.random() < 0.25)`",
            ),
            "`graphs[drawn_1, drawn_2]`",
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "in_rounds", ("once for each call of it, in their order",), "the graph of", marks=pytest.mark.sweep
        ),
    ],
)
def test_each_answer_of_a_helper_has_a_graph(name: str, asked: tuple[str, ...], graph: str) -> None:
    # GIVEN a step that goes on with what a helper returns, by one of two ways that the host draws
    # WHEN it is diagnosed
    told = _words(name)
    # THEN the draw is ahead of the launch, for each call, and no way is left out
    assert all(each in told for each in asked), told
    assert graph in told, told
    assert "have not returned" not in told, told


@pytest.mark.sweep
def test_a_step_that_returns_by_itself_is_launched_where_it_has_not() -> None:
    # GIVEN a step that returns what it draws, itself WHEN it is diagnosed
    # THEN it is launched where it has not returned, as ever
    assert "launch where they have not returned" in _words("explored")
