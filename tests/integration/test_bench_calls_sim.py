"""The workloads of ``bench --calls``, small and on the simulated device: the same tokens and gradients each way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.bench.calls import OVER, rows
from paramgraph_kit.bench.decoding import ways
from paramgraph_kit.bench.small_models import SmallModel

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward
WAYS: dict[str, Callable[[Any], Any]] = {
    "full": pgk.compile,
    "dynamo": partial(pgk.compile, guards="dynamo"),
    "inputs": partial(pgk.compile, guards="inputs"),
    "parameterize": pgk.parameterize,
}


@pytest.mark.parametrize("name", WAYS)
def test_a_decoding_loop_gives_eagers_tokens(name: str) -> None:
    torch._dynamo.reset()
    made = ways({name: WAYS[name]}, DEVICE.type, layers=1, dim=16, heads=2, hidden=32, vocab=32, length=32)
    loop, note = made[name]()
    loop()
    assert note() == "eager's tokens"


@pytest.mark.parametrize("gemma", [True, False])
def test_small_models_have_eagers_gradients(gemma: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = SmallModel(gemma=gemma, dim=16, hidden=32, vocab=32, layers=1).to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = pgk.compile(model)
    for _ in range(4):
        ids = torch.randint(0, 32, (1, 6)).to(DEVICE)
        for module, run in ((model, compiled), (eager, eager)):
            module.zero_grad()
            torch.autograd.backward(run(ids).float().square().mean())
        for a, b in zip(model.parameters(), eager.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.equal(a.grad, b.grad)


def test_no_workload_is_begun_when_the_time_is_over() -> None:
    found = list(rows(lambda: False))
    assert len(found) > 30
    assert {row["note"] for row in found} <= {OVER}
