"""Activation offloading by torch's own switch: activations leave when they were to leave, and the rest is launched."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.trace.errors import cause_chain

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

ROWS, WIDTH, LAYERS = 1024, 64, 10


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask for each large activation: torch takes the wish from its own passes, which mark nodes."""
    offloading: Any = importlib.import_module("torch._functorch._activation_offloading.activation_offloading")
    choose = offloading.choose_offload_sets

    def marking(forward: torch.fx.GraphModule, *rest: Any) -> Any:
        for node in forward.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
            node.meta["should_offload"] = True
        return choose(forward, *rest)

    monkeypatch.setattr(offloading, "choose_offload_sets", marking)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(offload: bool, backend: str | None, **switches: Any) -> tuple[list[torch.Tensor], int, Any]:
    """Outputs and gradients of three steps, the most bytes of a step over those at rest, and the model."""
    torch.manual_seed(0)
    model = Layers().to(pgk.device())
    cuda: Any = pgk.cuda
    found, peak = [], 0
    with functorch_config.patch(enable_activation_offloading=offload, **switches):
        run: Any = model if backend is None else torch.compile(model, backend=backend)
        for seed in range(3):
            x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).to(pgk.device())
            rest = cuda.memory_allocated()
            cuda.reset_peak_memory_stats()
            y = run(x)
            y.square().mean().backward()
            peak = cuda.max_memory_allocated() - rest
            found += [y.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]
            del y
            model.zero_grad()
    return found, peak, run


def test_offloaded_activations_leave_the_device_while_the_forward_runs() -> None:
    # GIVEN a model, trained eagerly, from graphs, and from graphs with offloading
    expected, _, _ = trained(False, None)
    kept, with_all, _ = trained(False, "paramgraph")
    torch._dynamo.reset()
    # WHEN activations are offloaded
    found, without, model = trained(True, "paramgraph")
    # THEN no bit differs
    assert len(found) == 3 * (1 + 2 * LAYERS)
    for each in (kept, found):
        assert all(torch.equal(a, b) for a, b in zip(each, expected, strict=True))
    # AND a step holds about half of the memory: copies wait for no partition's end
    assert without < 0.6 * with_all
    # AND all that computes is launched, the copies between partitions being all that is not
    report = pgk.report(model)
    assert {reason.code for reason in report.reasons} == {"device-copy"}
    outside = [row for row in report.rows if row.partition == "outside"]
    assert [row.kernels for row in outside] == [LAYERS - 1, LAYERS - 1]  # the last activation is the output


SWITCHES = ("activation_offload_sink_wait", "activation_reload_prefetch")


@pytest.mark.parametrize("on", [SWITCHES[:1], SWITCHES[1:], SWITCHES], ids="+".join)
def test_where_waits_and_copies_back_stand_changes_no_bit(on: tuple[str, ...]) -> None:
    # GIVEN a model trained eagerly WHEN offloaded with waits sunk to the end and copies back begun early
    expected, _, _ = trained(False, None)
    found, _, model = trained(True, "paramgraph", **dict.fromkeys(on, True))
    # THEN no bit differs, and the copies are all that is in no graph
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert {reason.code for reason in pgk.report(model).reasons} == {"device-copy"}


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_stream_of_its_own_ends_as_with_torch_s_own_backend(prefetch: bool) -> None:
    # GIVEN offloading over a stream of its own, for which torch wants pinned memory of the device (2.12 and newer) or
    # the device's speed: a device in Python has neither
    switches = {"activation_offload_separate_stream": True, "activation_reload_prefetch": prefetch}

    def outcome(backend: str) -> Any:
        torch._dynamo.reset()
        try:
            return [each.tolist() for each in trained(True, backend, **switches)[0]]
        except Exception as error:
            root = list(cause_chain(error))[-1]
            return type(root), str(root).partition("\n")[0]

    # WHEN compiled THEN this backend gives the same numbers as torch's own, or stops where that stops
    assert outcome("paramgraph") == outcome("aot_eager")
