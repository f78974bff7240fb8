"""Words for an optimizer that each step makes anew with the rate that the host has then, as its class takes it."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


class _Federation:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(8, 1).to(DEVICE)
        self.lr = 0.1

    def _trained(self, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        loss = self.model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    def sgd(self, x: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.5)
        loss = self._trained(x, optimizer)
        optimizer.step()
        self.lr *= 0.99
        return loss.detach()

    def adam(self, x: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.Adam(self.model.parameters(), self.lr)
        loss = self._trained(x, optimizer)
        optimizer.step()
        self.lr *= 0.99
        return loss.detach()

    def steady(self, x: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.5)
        loss = self._trained(x, optimizer)
        optimizer.step()
        return loss.detach()

    def followed(self, x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.5, fused=True)
        loss = self._trained(x, optimizer)
        optimizer.step()
        return loss.detach()


WORDS = {
    "sgd": "`torch.optim.SGD(self.model.parameters(), lr=lr_in, momentum=0.5, fused=True)`",
    "adam": "`torch.optim.Adam(self.model.parameters(), lr_in, capturable=True)`",
}


@pytest.mark.parametrize("name", ["sgd", pytest.param("adam", marks=pytest.mark.sweep)])
def test_an_optimizer_made_in_each_step_is_given_its_rate_as_its_class_takes_it(name: str) -> None:
    # GIVEN a step that makes its optimizer, with a rate that decays WHEN it is diagnosed
    found = pgk.diagnose(getattr(_Federation(), name), torch.ones(4, 8, device=DEVICE))
    # THEN the words fill a tensor, and the optimizer's own line has what that class has
    told = [f.fix for f in found.failures if f.code == "learning-rate-frozen"]
    assert len(told) == 1, found
    assert WORDS[name] in told[0], told
    assert "before each launch `lr_in.fill_(self.lr)`" in told[0], told


@pytest.mark.parametrize("name", ["steady", pytest.param("followed", marks=pytest.mark.sweep)])
def test_a_rate_that_stays_or_that_a_tensor_has_is_none(name: str) -> None:
    # GIVEN the same with one rate for ever, and as the words have it
    given = [torch.tensor(0.1, device=DEVICE)] if name == "followed" else []
    # WHEN it is diagnosed THEN no rate is told
    found = pgk.diagnose(getattr(_Federation(), name), torch.ones(4, 8, device=DEVICE), *given)
    assert "learning-rate-frozen" not in found.codes, found
