from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.select import twin
from paramgraph_kit.launch import stages
from paramgraph_kit.launch.launcher import Launcher, Options
from tests.integration.launch_bench import DEVICE, DRIVER, assert_same, host, launcher_of, moved, variants

# A partition launched in several stages holds about as much memory as without graphs, and small saved tensors share.

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

SIZE = 1 << 19  # 2 MiB of floats: each has a block of its own


@pytest.fixture(autouse=True)
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one stage holds more than no graphs is worth another."""
    monkeypatch.setattr(stages, "SLACK", 1 << 20)


def backwards(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three activations die one after the other, three gradients of their size are made; one number crosses them."""
    total = a.sum()
    x = a * total
    y = b * total + 1
    return x, y, (c - total) * 2


def peak(run: Any, inputs: list[Tensor]) -> tuple[int, Any]:
    """Bytes that a call took at most over what there was before, and what it returned."""
    cuda = twin()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    found = run(inputs)
    return cuda.max_memory_allocated() - before, found


def test_stages_hold_no_more_than_ungraphed_code_does() -> None:
    # GIVEN one function launched in one stage and in as many as its memory asks for
    tall, wide = (launcher_of(backwards, options=Options(stages=most)) for most in (1, 8))
    for launcher in (tall, wide):
        launcher([moved(SIZE, seed=n) for n in range(3)])
    counts = [len(v.plan.stages) for launcher in (tall, wide) for v in variants(launcher)]
    assert counts[0] == 1
    assert counts[1] > 1
    for seed in range(3):
        expected = backwards(*(moved(SIZE, seed=seed + n) for n in range(3)))
        # WHEN launched on inputs that nobody else holds
        most, one = peak(tall, [moved(SIZE, seed=seed + n) for n in range(3)])
        less, several = peak(wide, [moved(SIZE, seed=seed + n) for n in range(3)])
        # THEN both are right, and stages take less
        assert_same(one, expected)
        assert_same(several, expected)
        assert less <= most - SIZE * 4


def test_an_input_that_somebody_still_holds_stays_as_it_is() -> None:
    # GIVEN a function in stages WHEN the caller keeps an input, or gives one twice
    launcher = launcher_of(backwards)
    launcher([moved(SIZE, seed=n) for n in range(3)])
    kept = moved(SIZE, seed=5)
    found = launcher([kept, moved(SIZE, seed=6), kept])
    # THEN the result is right and the input untouched
    assert_same(found, backwards(moved(SIZE, seed=5), moved(SIZE, seed=6), moved(SIZE, seed=5)))
    assert torch.equal(host(kept), host(moved(SIZE, seed=5)))


def test_running_out_of_memory_between_stages_gives_back_what_was_taken() -> None:
    # GIVEN a function in stages, and an allocator that has nothing left when the second stage asks
    launcher = launcher_of(backwards)
    launcher([moved(SIZE, seed=n) for n in range(3)])
    (variant,) = variants(launcher)
    assert any(block.first < block.last for block in variant.plan.blocks)
    twin().empty_cache()
    inputs = [moved(SIZE, seed=n) for n in range(3)]
    kept = list(inputs)
    gc.collect()  # of what tests before this one have left
    before = DRIVER.memory()[0]
    calls = 0

    def empty(*_: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > len(variant.plan.stages[0].fresh):
            raise RuntimeError("nothing left")
        return DRIVER.empty_strided(*_)

    variant.launch.__globals__["empty"] = empty
    # WHEN launched THEN the error reaches the caller, and what the call had taken is given back
    assert error_of(launcher, inputs) == "nothing left"
    gc.collect()
    assert DRIVER.memory()[0] == before
    # AND the next call is right
    variant.launch.__globals__["empty"] = DRIVER.empty_strided
    assert_same(launcher(kept), backwards(*(moved(SIZE, seed=n) for n in range(3))))


def error_of(launcher: Launcher, inputs: list[Tensor]) -> str:
    """What a call fails with; its frames, and what they hold, are gone when this returns."""
    try:
        launcher(inputs)
    except RuntimeError as error:
        return str(error)
    return ""


class Gated(nn.Module):
    """Returns what its backward has saved, beside small and large activations that nobody else sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.layers[0](x).tanh()
        y = h
        for layer in self.layers:
            y = torch.sigmoid(layer(y))
        return y, h


def training(keep: bool, rows: int, **options: Any) -> tuple[list[Tensor], list[Any]]:
    """Outputs after the backward, and all gradients, of three steps; and the plans that they were launched by."""
    torch._dynamo.reset()
    known = set(compiled_graphs())
    torch.manual_seed(0)
    model = Gated().to(DEVICE)
    fast = torch.compile(model, backend=paramgraph, options=options)
    found = []
    for seed in range(3):
        y, h = fast(moved(rows, 256, seed=seed))
        if not keep:
            del h
        (y * y).sum().backward(retain_graph=keep)
        if keep:
            (y * y).sum().backward()
            found.append(host(h))
        found.append(host(y))
        for p in model.parameters():
            assert p.grad is not None
            found.append(host(p.grad))
            p.grad = None
    graphs = set(compiled_graphs()) - known
    plans = [v.plan for graph in graphs for one in graph.launchers for v in variants(one)]
    torch._dynamo.reset()
    return found, plans


@pytest.mark.parametrize("rows", [16, 4096], ids=["small", "large"])
@pytest.mark.parametrize("keep", [False, True], ids=["once", "retained and twice"])
def test_a_training_step_gives_the_same_bits(keep: bool, rows: int) -> None:
    # GIVEN a model that returns activations which its backward also reads, and its numbers without graphs
    expected, _ = training(keep, rows, select="never")
    # WHEN launched from graphs THEN outputs and gradients are the same
    found, plans = training(keep, rows)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # AND small activations share one allocation, large ones are given back between stages
    assert any(plan.shelf_bytes > 0 for plan in plans) is (rows == 16)
    staged = any(len(plan.stages) > 1 for plan in plans)
    assert staged is (rows == 4096) or keep  # what is retained does not die, and torch 2.11 holds the tangents as well
