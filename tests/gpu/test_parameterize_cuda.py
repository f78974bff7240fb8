"""pgk.parameterize on a GPU: eager's bits, forward and backward, at addresses that move, and no memory kept."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paramgraph_kit as pgk
from tests.global_state import attribute

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    """Attention and a gated feed-forward, with dropout."""

    def __init__(self, dim: int = 256, heads: int = 4, p: float = 0.1) -> None:
        super().__init__()
        self.heads, self.p = heads, p
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + F.dropout(self.down(F.silu(self.up(x))), self.p, self.training)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 8),
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "attention": (Block, (2, 64, 256), torch.float32),
    "attention, half": (Block, (2, 64, 256), torch.bfloat16),
    "convolutions": (convolutions, (4, 3, 16, 16), torch.float32),
}


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def train(
    call: Callable[[Tensor], Tensor], model: nn.Module, size: tuple[int, ...], dtype: torch.dtype
) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seen: list[Tensor] = []
    held: list[Tensor] = []
    for seed in range(5):
        torch.manual_seed(seed)
        held.append(torch.empty(1000 * (seed + 1), device="cuda"))  # so that addresses move
        x = torch.randn(size, device="cuda", dtype=dtype).requires_grad_()
        out = call(x)
        out.square().mean().backward()
        assert x.grad is not None
        seen += [out.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return seen + list(model.state_dict().values())


@pytest.mark.parametrize("case", CASES)
def test_training_has_eagers_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a module and its twin WHEN one is trained through graphs
    build, size, dtype = CASES[case]
    if case == "convolutions":  # tracing decomposes batch normalization into torch's own kernels
        monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    torch.manual_seed(0)
    model = build().to("cuda", dtype)
    twin = copy.deepcopy(model)
    step = pgk.parameterize(model)
    ours, theirs = train(step, model, size, dtype), train(twin, twin, size, dtype)
    # THEN everything is the same bits, and it ran from graphs, copying nothing
    assert [n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not torch.equal(a, b)] == []
    report = pgk.report(step)
    assert [(row.graph.split()[0], row.graphed, row.copied_bytes) for row in report.rows] == [
        ("forward", True, 0),
        ("backward", True, 0),
    ], str(report)
    assert all(row.launches >= 3 for row in report.rows), str(report)  # attention's seeds are on the host at first


@pytest.mark.parametrize("case", CASES)
def test_inference_has_eagers_bits_and_outputs_stay_valid(case: str) -> None:
    # GIVEN a module in inference WHEN results are held over calls
    build, size, dtype = CASES[case]
    torch.manual_seed(0)
    model = build().to("cuda", dtype).eval()
    step = pgk.parameterize(model, torch.randn(size, device="cuda", dtype=dtype))
    with torch.no_grad():
        inputs = [torch.randn(size, device="cuda", dtype=dtype) for _ in range(4)]
        found = [step(x) for x in inputs]
        # THEN each is eager's
        assert all(torch.equal(a, model(x)) for a, x in zip(found, inputs, strict=True))
        # AND other shapes and switches of libraries are captured by themselves
        for precision in ("ieee", "tf32", "ieee"):
            with attribute(torch.backends.cuda.matmul, "fp32_precision", precision):
                for x in (inputs[0], inputs[0][:1].clone()):
                    assert all(torch.equal(step(x), model(x)) for _ in range(2))


def test_nothing_is_held_when_it_is_gone() -> None:
    # GIVEN memory before
    def use() -> None:
        model = Block().cuda()
        step = pgk.parameterize(model)
        for _ in range(3):
            step(torch.randn(2, 64, 256, device="cuda")).sum().backward()

    use()  # libraries' workspaces stay
    gc.collect()
    before = torch.cuda.memory_allocated()
    # WHEN a parameterized module was used and dropped THEN memory is where it was
    use()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before


def test_writes_nesting_and_other_streams() -> None:
    # GIVEN a function that writes into an input and returns views, on two streams in turn
    def run(cache: Tensor, new: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        cache[new["at"]].copy_(new["x"] * 2)
        return cache[:2], {"sum": cache.sum(0)}

    step = pgk.parameterize(run)
    for seed in range(6):
        torch.manual_seed(seed)
        ours = torch.randn(4, 1024, device="cuda")
        theirs, x = ours.clone(), torch.randn(1024, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream() if seed % 2 else torch.cuda.current_stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            view, rest = step(ours, {"at": seed % 2, "x": x})
        torch.cuda.synchronize()
        expected, other = run(theirs, {"at": seed % 2, "x": x})
        # THEN results, the cache and the aliasing are eager's
        assert torch.equal(view, expected)
        assert torch.equal(rest["sum"], other["sum"])
        assert torch.equal(ours, theirs)
        assert view.data_ptr() == ours.data_ptr()
