"""Whose gradients a capture adds to: looked for among all objects, those that a diagnosis has set aside included."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from paramgraph_kit.doctor.observe.captured_flow import weights_of
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver import collection


@pytest.mark.parametrize("rewrites", [False, True])
def test_weights_from_ahead_of_a_diagnosis_are_found_by_their_gradients(
    rewrites: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a layer with gradients, made ahead of a diagnosis, which sets aside what is there where it rewrites
    gc.unfreeze()
    monkeypatch.setattr(collection, "_others", False)
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    pairs = {storage_key(p.grad): p for p in layer.parameters() if p.grad is not None}
    # WHEN asked meanwhile THEN each gradient's weight is known
    if rewrites:
        with collection.only_new():
            assert {storage_key(grad): weight for weight, grad in weights_of(pairs)} == pairs
    assert {storage_key(grad): weight for weight, grad in weights_of(pairs)} == pairs
