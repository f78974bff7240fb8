"""Training by torch's own DDP and FSDP2, one rank on the simulated device: hooks are kept, parameters come and go."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import paramgraph_kit as pgk

if not dist.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

from tests.corpus.training import Blocks
from tests.integration.one_rank import one_rank

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated"),
    # torch's own: of what Dynamo cannot trace in its hooks, and of what it looks at itself.
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
DEVICE = pgk.device()
SHAPES = (2, 8, 64), (8, 8), (8, 8)


@pytest.fixture(autouse=True)
def _group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 4096)  # so that a small model has several
    torch._dynamo.reset()
    with one_rank(DEVICE):
        yield
    torch._dynamo.reset()


def _by_block(model: Any, select: str) -> Any:
    for k, block in enumerate(model.layers):
        model.layers[k] = pgk.compile(block, select=select)
    return model


def _ddp(model: Any, **how: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01, **how)


def _fsdp2(model: Any, select: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=True)
    return _by_block(fully_shard(model), select)


WRAPPED: dict[str, Callable[[Any, str], Any]] = {
    "ddp, compiled whole": lambda model, select: pgk.compile(_ddp(model), select=select),
    "ddp, by block": lambda model, select: _ddp(_by_block(model, select), gradient_as_bucket_view=True),
    "fsdp2, by block": _fsdp2,
}


def _local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


@pytest.mark.parametrize("name", WRAPPED)
def test_training_has_the_bits_of_the_same_code_without_graphs(name: str) -> None:
    # GIVEN a model that is wrapped and compiled, once with graphs and once without, and an optimizer for each
    torch.manual_seed(0)
    model: Any = Blocks(2 if "fsdp2" in name else 1).to(DEVICE)
    plain = copy.deepcopy(model)
    wrapped, reference = WRAPPED[name](model, "always"), WRAPPED[name](plain, "never")
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    heard: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(heard.append)
    # WHEN trained, gradients of two batches summed up in each step
    for _ in range(3):
        heard.clear()
        batches = [[torch.randn(size, device=DEVICE) for size in SHAPES] for _ in range(2)]
        for run, optimizer in zip((wrapped, reference), optimizers, strict=True):
            optimizer.zero_grad()
            for batch in batches:
                torch.autograd.backward(run(*batch).square().mean())
        # THEN gradients are equal bit for bit, and each hook was called in each backward
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(_local(ours.grad), _local(theirs.grad))
        assert len(heard) == 2 * len(list(model.parameters()))
        for optimizer in optimizers:
            optimizer.step()
    # AND so are parameters in the end, and the compiled parts ran from graphs
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(_local(ours), _local(theirs))
    launched = [row.launches for row in pgk.report(wrapped).rows if row.graphed]
    assert max(launched) >= 4
    assert len(launched) >= 2
