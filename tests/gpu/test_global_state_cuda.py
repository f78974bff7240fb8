"""A graph that was captured under one state of torch's switches is not launched under another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.tensors import same_bits
from tests.global_state import Value, libraries, modes

pytestmark = pytest.mark.gpu
SWITCHES = modes("cuda") | libraries()
DTYPES = {
    "half-precision sums": torch.float16,
    "half-precision accumulation": torch.float16,
    "bfloat16 sums": torch.bfloat16,
    "attention": torch.float16,
    "BLAS": torch.bfloat16,
}


class Mixed(nn.Module):
    """A convolution, attention and a product, whose kernels libraries choose."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.qkv, self.out = nn.Conv1d(64, 64, 3, padding=1), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, 64 channels, tokens)."""
        q, k, v = self.qkv(self.conv(x).transpose(1, 2)).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        attended: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return attended


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def results(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and, where gradients are on, the gradients."""
    y = call(x)
    if not y.requires_grad:
        return [y]
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), [*model.parameters()])]


def visits(values: tuple[Value, ...]) -> list[int]:
    """Each value until its graph is launched, then all of them in turn, twice."""
    return [k for k in range(len(values)) for _ in range(3)] + [*range(len(values))] * 2


@pytest.mark.parametrize("switch", SWITCHES)
def test_switching_gives_the_bits_of_the_compiled_code_ungraphed(switch: str) -> None:
    # GIVEN a compiled model that runs from graphs
    torch.manual_seed(0)
    dtype = DTYPES.get(switch, torch.float32)
    model = Mixed().to("cuda", dtype)
    compiled: Any = pgk.compile(model)
    for seed, k in enumerate(visits(SWITCHES[switch])):
        # WHEN a switch is set THEN graphs have the bits of the same compiled code without them under that switch
        x = torch.randn(8, 64, 32, device="cuda", dtype=dtype)
        with SWITCHES[switch][k]():
            torch.manual_seed(seed)
            ours = results(compiled, model, x)
            launchers = [launcher for graph in compiled_graphs() for launcher in graph.launchers]
            for launcher in launchers:
                launcher.pause()
            theirs = results(compiled, model, x)
            for launcher in launchers:
                launcher.resume()
        assert len(ours) == len(theirs)
        assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
    assert sum(v.state.launches for g in compiled_graphs() for x in g.launchers for v in x.variants.values() if v)


@pytest.mark.parametrize("switch", SWITCHES)
def test_switching_gives_eagers_bits_where_nothing_is_compiled(switch: str) -> None:
    # GIVEN a parameterized model
    torch.manual_seed(0)
    dtype = DTYPES.get(switch, torch.float32)
    model = Mixed().to("cuda", dtype)
    step = pgk.parameterize(model)
    for k in visits(SWITCHES[switch]):
        # WHEN a switch is set THEN its graphs have eager's bits under that switch
        x = torch.randn(8, 64, 32, device="cuda", dtype=dtype)
        with SWITCHES[switch][k]():
            ours, theirs = results(step, model, x), results(model, model, x)
        assert len(ours) == len(theirs)
        assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
    assert any(row.launches for row in pgk.report(step).rows)
