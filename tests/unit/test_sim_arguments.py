"""Arguments that CUDA, or torch before it launches anything, refuses in a capture [H200]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from paramgraph_kit.driver.sim.libraries import forget
from tests.unit.test_sim_capture import captured

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]

MANY = 1 << 17
BEYOND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a fill": lambda x: x.byte().fill_(300),
    "a fill with no number": lambda x: x.byte().fill_(torch.nan),
    "a fill of an item": lambda x: x.byte()[0].fill_(300),
    "a new tensor": lambda x: torch.full((2,), 2**40, device=x.device, dtype=torch.int32),
    "a tensor like another": lambda x: torch.full_like(x, 1e6, dtype=torch.float16),
    "where a mask is": lambda x: x.byte().masked_fill(x > 0, 300),
    "where a large mask is": lambda x: x.half().expand(MANY, 2).masked_fill(x > 0, -1e9),
    "where a mask is, in place": lambda x: x.half().masked_fill_(x > 0, 1e9),
    "rows": lambda x: x.byte().index_fill(0, x.long(), 300),
}


@pytest.mark.parametrize("call", BEYOND.values(), ids=BEYOND)
def test_a_number_beyond_the_type_is_refused_when_it_is_captured(
    call: Callable[[torch.Tensor], torch.Tensor], sim: torch.device, cuda: Any
) -> None:
    # GIVEN a number that a type does not hold WHEN a tensor of that is filled in a capture THEN torch refuses it there
    x = torch.ones(2, device=sim)
    with pytest.raises(RuntimeError, match=r"value cannot be converted to type .* without overflow"):
        captured(cuda, lambda: call(x))


def test_what_a_type_holds_in_its_own_way_is_filled(sim: torch.device, cuda: Any) -> None:
    # GIVEN numbers that are rounded, wrapped or infinite in a type
    whole, small, half = (torch.ones(2, dtype=each, device=sim) for each in (torch.int32, torch.uint8, torch.half))

    def fill() -> None:
        whole.fill_(2.7)
        small.fill_(-1)
        half.masked_fill_(half > 0, -torch.inf)

    # WHEN they are filled in a capture THEN they are there
    graph, _ = captured(cuda, fill)
    graph.replay()
    assert (whole.tolist(), small.tolist(), half.tolist()) == ([2, 2], [255, 255], [-torch.inf, -torch.inf])


def test_no_event_times_for_other_processes(sim: torch.device, cuda: Any) -> None:
    # GIVEN an event that is to time, and for other processes WHEN it is recorded THEN CUDA makes none
    with pytest.raises(torch.AcceleratorError, match="invalid argument"):
        cuda.Event(enable_timing=True, interprocess=True).record()
    # and one that does not time is recorded
    cuda.Event(interprocess=True).record()


def test_a_pool_of_zeros_is_no_pool(sim: torch.device, cuda: Any) -> None:
    # GIVEN the number of no pool WHEN two graphs are captured with it THEN each has a pool of its own
    x, graphs = torch.ones(2, device=sim), [cuda.CUDAGraph() for _ in range(2)]
    for graph in graphs:
        with cuda.graph(graph, pool=(0, 0)):
            x * 2
    assert len({(0, 0), *(tuple(graph.pool()) for graph in graphs)}) == len(graphs) + 1


@pytest.mark.parametrize("enabled", [True, False])
def test_whole_numbers_are_convolved_by_nobody(enabled: bool, sim: torch.device, cuda: Any) -> None:
    # GIVEN whole numbers, and a thread without a handle
    x, weight = (torch.ones(1, 1, n, n, dtype=torch.int32, device=sim) for n in (4, 3))
    forget()
    # WHEN they are convolved in a capture THEN cuDNN's handle comes first; where that is off, the type does
    with torch.backends.cudnn.flags(enabled=enabled), pytest.raises(RuntimeError) as caught:
        captured(cuda, lambda: functional.conv2d(x, weight))
    first: Any = caught.value.__context__ if enabled else caught.value
    assert ("CUDNN_STATUS" if enabled else "slow_conv2d_cuda") in str(first)
    cuda.recover()
    # and eagerly it is that cuDNN has no kernel for the type [H200]
    with pytest.raises(RuntimeError, match="GET was unable to find an engine"):
        functional.conv2d(x, weight)
