"""A process group of one rank on the simulated device, so that torch's own DDP and FSDP2 run there as they are."""

# mypy: disable-error-code="no-untyped-def, override"
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param

NAME = "one_rank"


class _Done(dist._Work):  # type: ignore[misc, name-defined]
    """Work that was done at once."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future = torch.futures.Future()  # type: ignore[var-annotated]
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class OneRank(dist.ProcessGroup):
    """Collectives among one rank are copies."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # a store is for those that meet there

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        return "0"

    @property
    def group_name(self) -> str:
        return "0"

    def allreduce(self, tensors, opts=None):
        return _Done(tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        return _Done(tensors)

    def broadcast(self, tensors, opts=None):
        return _Done(tensors)

    def allgather(self, outputs, inputs, opts=None):
        for output, given in zip(outputs, inputs, strict=True):
            output[0].copy_(given)
        return _Done(outputs)

    def _allgather_base(self, output, given, opts=None):
        output.copy_(given)
        return _Done([output])

    def _reduce_scatter_base(self, output, given, opts=None):
        output.copy_(given)
        return _Done([output])


@contextmanager
def one_rank(device: torch.device) -> Iterator[None]:
    """A default process group; memory that FSDP2 gives back holds nothing but NaN until it is gathered again."""
    dist.Backend.register_backend(NAME, lambda *_: OneRank(), devices=[device.type, "cpu"])

    def freed(tensor: torch.Tensor) -> None:  # storages of the simulated device have one size for ever
        tensor.data.fill_(float("nan"))

    store = dist.HashStore()  # type: ignore[attr-defined]  # public, only not listed
    dist.init_process_group(NAME, store=store, rank=0, world_size=1)
    try:
        with mock.patch.multiple(_fsdp_param, free_storage=freed, alloc_storage=lambda _: None):
            yield
    finally:
        dist.destroy_process_group()
