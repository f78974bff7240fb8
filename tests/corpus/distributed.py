"""Collectives inside the compiled region, DDP, and FSDP2 by block, whose parameters lie elsewhere in every step.

NCCL's kernels keep addresses in memory of their own once their work is too large for parameters: a result that is
wrong, or a graph without a reason, shows here first.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.corpus.case import Case, normal, tensors
from tests.corpus.training import MLP, Blocks


class Reduced(nn.Module):
    """Two layers with an all-reduce of what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 256), nn.Linear(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        hidden = self.before(x).relu()
        dist.all_reduce(hidden)
        result: Tensor = self.after(hidden)
        return result


def _join(device: torch.device) -> None:
    """Be a rank: of those that torchrun started, or the only one."""
    if dist.is_initialized():
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, only not listed
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def _reduced(device: torch.device) -> nn.Module:
    _join(device)
    torch.manual_seed(0)
    return Reduced().to(device)


def _ddp(device: torch.device) -> nn.Module:
    _join(device)
    torch.manual_seed(0)
    return nn.parallel.DistributedDataParallel(MLP().to(device))


def _fsdp(device: torch.device, reshard: bool | None = None) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    _join(device)
    torch.manual_seed(0)
    model = Blocks(3).to(device)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    return model


def _tensor_parallel(device: torch.device) -> nn.Module:
    """An MLP whose first layer is cut by columns and whose second by rows: DTensors, one all-reduce."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    _join(device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def local(tensor: Any) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def _forward(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return tensors(model(*[x * (1 + dist.get_rank()) for x in inputs]))


def _same_inputs(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    """A step whose input is every rank's, as tensor parallelism wants it."""
    loss = model(*inputs).square().mean()
    loss.backward()
    found = [loss.detach()] + [local(p.grad).clone() for p in model.parameters() if p.grad is not None]
    for p in model.parameters():
        p.grad = None
    return found


def _backward(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    return _same_inputs(model, [x * (1 + dist.get_rank()) for x in inputs], None)


def cases() -> list[Case]:
    """The distributed family."""
    rows = normal((16, 32))
    return [
        Case("all-reduce of one rank", _reduced, rows, _forward, unsimulated="NCCL needs a GPU", timed=False),
        Case("all-reduce of two ranks", _reduced, rows, _forward, ranks=2, timed=False),
        Case("ddp training", _ddp, rows, _backward, training=True, ranks=2, timed=False),
        Case(
            "fsdp2 by block training",
            _fsdp,
            normal((2, 16, 64), (16, 8), (16, 8)),
            _backward,
            blocks="layers",
            training=True,
            ranks=2,
            timed=False,
        ),
        Case(
            "fsdp2 resharded after the forward training",
            lambda device: _fsdp(device, reshard=True),
            normal((2, 16, 64), (16, 8), (16, 8)),
            _backward,
            blocks="layers",
            training=True,
            ranks=2,
            timed=False,
        ),
        Case("tensor parallel training", _tensor_parallel, rows, _same_inputs, training=True, ranks=2, timed=False),
    ]
