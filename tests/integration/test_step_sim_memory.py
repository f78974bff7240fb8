"""What graphs of many shapes hold while they are launched, on the simulated device's allocator."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.launch_bench import assert_same, launcher_of, launches, moved, variants
from tests.integration.test_launch_sim_failures import everything_but, hungry

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

MIB = 1 << 20


def test_many_shapes_in_turn_hold_the_workspace_of_the_largest() -> None:
    # GIVEN batches of many sizes, each a little larger than the one before
    scale = nn.Parameter(torch.ones(1 << 16, device=pgk.device()))
    optimizer = torch.optim.SGD([scale], lr=0.01)

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x * scale).tanh().sigmoid().tanh().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = pgk.parameterize(train, state=optimizer, verify="off")
    batches = [torch.ones(n, 1, device=pgk.device()) for n in range(40, 80, 8)]
    for _ in range(2):
        list(map(step, batches))
    # WHEN they take turns
    gc.collect()
    pgk.cuda.empty_cache()
    before = pgk.cuda.memory_reserved()
    pgk.cuda.reset_peak_memory_stats()
    for _ in range(2):
        list(map(step, batches))
    # THEN the allocator keeps no piece for each size: all graphs take alike ones
    (row,) = pgk.report(step).rows
    assert row.executables == len(batches)
    assert pgk.cuda.max_memory_reserved() - before <= row.workspace_bytes + 4 * MIB


def test_a_graph_is_launched_where_there_is_room_for_its_own_workspace_alone() -> None:
    # GIVEN two graphs that take turns on alike pieces of workspace, and a device with room for the smaller one's
    launcher = launcher_of(hungry, layouts=True)
    x = moved(MIB // 2)
    for each in (x, moved(MIB)):
        launcher([each])
    small, large = variants(launcher)
    assert small.state.rooms == large.state.rooms
    pgk.cuda.empty_cache()
    spare = torch.empty(small.plan.workspace_bytes + 12 * MIB, dtype=torch.uint8, device=x.device)
    hog = everything_but(4 * MIB)
    del spare
    # WHEN that is launched THEN it is right
    assert_same(launcher([x]), hungry(x))
    assert launches(launcher) == 1
    hog.clear()
