"""What is kept by which tensor an argument is, is told: a graph is given one and the same for ever."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def told(function: object, *args: object) -> set[tuple[str, str]]:
    return {(f.code, f.frame.text) for f in pgk.diagnose(function, *args) if f.frame}


def test_features_of_an_image_that_is_asked_for_by_identity_are_told() -> None:
    # GIVEN steps that compute features where the image is another object, or lies elsewhere, and one by a cache
    image, net = SimpleNamespace(now=None, at=0, features=None), torch.nn.Linear(4, 4).to(DEVICE)

    @torch.no_grad()
    def by_identity(x: torch.Tensor, query: torch.Tensor) -> Any:
        if x is not image.now:
            image.now, image.features = x, net(x)
        return image.features @ query

    @torch.no_grad()
    def by_address(x: torch.Tensor, query: torch.Tensor) -> Any:
        if x.data_ptr() != image.at:
            image.features = net(x)
            image.at = x.data_ptr()
        return image.features @ query

    @functools.lru_cache(maxsize=4)
    def features(x: torch.Tensor) -> Any:
        return net(x)

    @torch.no_grad()
    def by_cache(x: torch.Tensor, query: torch.Tensor) -> Any:
        return features(x) @ query

    # WHEN they are looked at
    x, query = torch.rand(2, 4, device=DEVICE), torch.rand(4, 1, device=DEVICE)
    # THEN the test is told, or the line that asks the cache
    assert ("branch-frozen", "if x is not image.now:") in told(by_identity, x, query)
    assert ("branch-frozen", "if x.data_ptr() != image.at:") in told(by_address, x, query)
    assert [code for code, _ in told(by_cache, x, query)] == ["branch-frozen"]


def test_pieces_are_not_promised_of_what_is_kept_by_object() -> None:
    # GIVEN a step that computes features where the image is another object, for which Dynamo has no guard
    image, net = SimpleNamespace(now=None, features=None), torch.nn.Linear(4, 4).to(DEVICE)

    @torch.no_grad()
    def step(x: torch.Tensor, query: torch.Tensor) -> Any:
        if x is not image.now:
            image.now, image.features = x, net(x)
        return image.features @ query

    # WHEN it is to be mended
    found = pgk.diagnose(step, torch.rand(2, 4, device=DEVICE), torch.rand(4, 1, device=DEVICE), fix=True)
    # THEN nothing is said to be proved, and the words say where what is kept belongs
    assert found.fix is None or not (found.fix.pieces or found.fix.complete)
    assert "in each launch, or ahead of them" in " ".join(str(found).split())


def test_what_is_made_once_whoever_asks_is_not_told() -> None:
    # GIVEN a table that the first call makes by its size, and a mask that it keeps
    tables, kept = dict[int, torch.Tensor](), SimpleNamespace(mask=None)

    def step(x: torch.Tensor) -> Any:
        n = x.shape[-1]
        if n not in tables:
            tables[n] = torch.arange(n, device=DEVICE).float().cos()
        if kept.mask is None:
            kept.mask = torch.ones(n, n, device=DEVICE).tril()
        return kept.mask @ x * tables[n]

    # WHEN it is looked at
    # THEN it has no problem
    assert not told(step, torch.rand(4, device=DEVICE))
