"""What the simulated device counts and refuses under torch.cuda's names: memory, priorities, pools, autocast."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.sim.cuda_memory import memory_stats, memory_stats_as_nested_dict
from paramgraph_kit.driver.sim.machine import SWAP
from paramgraph_kit.driver.sim.not_known import NotKnownWarning

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


def test_memory_is_counted_under_torchs_names(sim: torch.device, cuda: Any) -> None:
    # GIVEN what is counted WHEN a small and a large tensor are made and one is freed
    before = memory_stats()
    small, large = torch.ones(1000, device=sim), torch.ones(1 << 20, device=sim)
    del small
    moved = {name: value - before[name] for name, value in memory_stats().items()}
    # THEN each is counted where torch counts it
    assert [moved[f"allocation.{pool}.allocated"] for pool in ("all", "small_pool", "large_pool")] == [2, 1, 1]
    assert (moved["allocation.small_pool.freed"], moved["allocation.all.current"]) == (1, 1)
    assert moved["requested_bytes.all.allocated"] == 4000 + large.nbytes
    assert moved["allocated_bytes.all.allocated"] == 4096 + large.nbytes
    assert moved["num_device_alloc"] == moved["segment.all.allocated"]
    # AND the totals can start again
    cuda.reset_accumulated_memory_stats()
    again = memory_stats_as_nested_dict()["allocation"]["all"]
    assert (again["allocated"], again["freed"]) == (0, 0)  # [H200], whatever is held


def test_a_segment_is_counted_once(sim: torch.device, cuda: Any) -> None:
    # GIVEN nothing that is cached WHEN a tensor needs a segment of its own THEN there is one more
    cuda.empty_cache()
    before = memory_stats()
    large = torch.empty(16 << 20, dtype=torch.uint8, device=sim)
    moved = {name: value - before[name] for name, value in memory_stats().items()}
    assert (moved["segment.all.allocated"], moved["segment.large_pool.current"]) == (1, 1)
    assert moved["reserved_bytes.all.allocated"] >= large.nbytes


@pytest.mark.skipif(not hasattr(torch.UntypedStorage, SWAP), reason="this torch gives no storage other memory")
def test_a_storage_is_resized_under_every_tensor_over_it(sim: torch.device, cuda: Any) -> None:
    # GIVEN a tensor, a part of it and the memory that is held, of which no garbage goes meanwhile
    gc.collect()
    before = cuda.memory_allocated()
    x = torch.arange(64.0, device=sim)
    part = x[2:]
    # WHEN its storage grows THEN both have moved, with their numbers
    x.untyped_storage().resize_(1024)
    assert (part[:2].tolist(), x.untyped_storage().nbytes()) == ([2.0, 3.0], 1024)
    assert cuda.memory_allocated() - before == 1024
    # AND what is taken away is free, until it is given back
    x.untyped_storage().resize_(0)
    assert cuda.memory_allocated() == before
    x.untyped_storage().resize_(256)
    x.fill_(3)
    assert part[:1].tolist() == [3.0]
    del x, part
    assert cuda.memory_allocated() == before


def test_streams_have_the_priorities_that_torch_gives(sim: torch.device, cuda: Any) -> None:
    # GIVEN torch's range WHEN more is asked for THEN the nearest is given
    assert cuda.Stream.priority_range() == (0, -3)
    assert [cuda.Stream(priority=asked).priority for asked in (0, -1, -99, 5)] == [0, -1, -3, 0]


def test_what_cuda_refuses_is_refused(sim: torch.device, cuda: Any) -> None:
    # GIVEN a device that is not there, a generator of the CPU, and a loss that autocast bans WHEN used THEN as on a GPU
    x = torch.rand(4, device=sim)
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        cuda.set_device(7)
    with (
        pytest.warns(NotKnownWarning, match="a graph is given a generator of the CPU"),
        pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"),
    ):
        cuda.CUDAGraph().register_generator_state(torch.Generator())
    with torch.autocast("sim"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(x, x)
    # AND operations of several types take the widest
    with torch.autocast("sim"):
        assert torch.dot(x.half(), x).dtype == torch.float32


def test_a_product_of_int8_into_int32_is_one_kernel(sim: torch.device) -> None:
    # GIVEN what torchao's dynamic quantization traces WHEN computed THEN it is, though products of integers are refused
    from torch._higher_order_ops.out_dtype import out_dtype

    x = torch.randint(-9, 9, (24, 16), dtype=torch.int8)
    found = out_dtype(torch.ops.aten.mm.default, torch.int32, x.to(sim), x.T.to(sim))
    assert torch.equal(found.cpu(), x.int() @ x.T.int())
    with pytest.raises(NotImplementedError, match='"addmm_cuda" not implemented for'):
        x.to(sim) @ x.T.to(sim)


def test_a_pool_knows_who_holds_it(sim: torch.device, cuda: Any) -> None:
    # GIVEN a pool WHEN memory comes from it THEN it counts who holds it, and shows its segments
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        kept = torch.ones(4, device=sim)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    assert [segment["allocated_size"] for segment in pool.snapshot()] == [512]
    assert kept.tolist() == [1.0] * 4
