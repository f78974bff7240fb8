"""Memory that an operation reads and writes at once, in a capture: refused as outside of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import paramgraph_kit as pgk

Step = Callable[[torch.Tensor, torch.Tensor], object]

REFUSED: dict[str, Step] = {
    "cat": lambda x, i: torch.cat((x[:1], x[1:3]), out=x),
    "stack": lambda x, i: torch.stack((x[0], x[0]), out=x[:2]),
    "take": lambda x, i: torch.take(x, i, out=x[0, :2]),
    "scatter_": lambda x, i: x[:2].scatter_(0, i[:, None].expand(2, 4), x[1:]),
    "index_add_": lambda x, i: x.index_add_(0, i, x[1:]),
    "index_copy_": lambda x, i: x.index_copy_(0, i, x[1:]),
    "index_put_": lambda x, i: x[:2].index_put_((i,), x[1:]),
    "by a mask": lambda x, i: x.index_put_((torch.ones(3, dtype=torch.bool, device=x.device),), x),
    "where": lambda x, i: torch.where(x[:2] > 0, x[:2], x[1:], out=x[1:]),
}
TAKEN: dict[str, Step] = {
    "index_add_ of other rows": lambda x, i: x[:2].index_add_(0, i[:1], x[2:]),
    "cat to other rows": lambda x, i: torch.cat((x[:1],), out=x[2:]),
    "a copy of itself": lambda x, i: x.index_copy_(0, i, x[1:].clone()),
}


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(12.0, device=pgk.device()).reshape(3, 4)
    return x, torch.zeros(2, dtype=torch.long, device=pgk.device())


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_a_capture_refuses_what_overlaps(step: Step, given: tuple[torch.Tensor, torch.Tensor]) -> None:
    # GIVEN an operation whose result lies partly where it reads
    with pytest.raises(RuntimeError, match=r"^unsupported operation: .* refer to a single memory location") as eagerly:
        step(*given)
    # WHEN it is captured THEN torch's words come, as an H200 has them for torch.cat, and the capture goes on
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        with pytest.raises(RuntimeError) as captured:
            step(*given)
        doubled = given[0] * 2
    assert str(captured.value) == str(eagerly.value)
    graph.replay()
    assert doubled.tolist() == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]]


@pytest.mark.parametrize("step", TAKEN.values(), ids=TAKEN)
def test_a_capture_takes_what_lies_apart(step: Step, given: tuple[torch.Tensor, torch.Tensor]) -> None:
    # GIVEN an operation that writes other parts of the tensor that it reads
    x, i = given
    expected = x.clone()
    step(expected, i)
    # WHEN it is captured and replayed THEN it does as eagerly
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        step(x, i)
    graph.replay()
    assert torch.equal(x, expected)
