"""Views of which a trace does not know that they share memory: parameterized as eager, where somebody writes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
REACHES = "an input of which an as_strided view reaches out: a trace does not know that they share memory: slice the"
SPLIT = "unsafe_split or unsafe_chunk gave: a trace does not know that they share memory: use split or chunk"


def _view_written(x: Tensor) -> Any:
    part = x.as_strided((4,), (1,), 0)
    part.mul_(2)
    return x + 1, part


def _view_written_by_name(x: Tensor) -> Any:
    part = torch.as_strided(input=x, size=(4,), stride=(1,), storage_offset=1)
    torch.mul(part, 3, out=part)
    return x + 1


def _input_written(x: Tensor) -> Any:
    part = x.as_strided((4,), (1,), 6)
    x.mul_(2)
    return part + 1


def _beyond_its_end(x: Tensor) -> Any:
    part = x.as_strided((8,), (1,))
    x.mul_(2)
    return part + 1


def _between_its_elements(x: Tensor) -> Any:
    part = x[::2].as_strided((3,), (1,))
    torch._foreach_mul_([x], 2)
    return part + 1


def _part_written(x: Tensor) -> Any:
    whole = x * 1
    torch.unsafe_split(whole, 3)[0].mul_(2)
    return whole


def _part_of_an_input_written(x: Tensor) -> Any:
    part, _ = torch.unsafe_chunk(x, 2)
    part.mul_(2)
    return part.clone()


def _whole_written(x: Tensor) -> Any:
    whole = x * 1
    parts = torch.unsafe_split_with_sizes(whole, [1, 4])
    whole.mul_(2)
    return parts[1] + 1


def _part_of_a_part_written(x: Tensor) -> Any:
    whole = x * 1
    first, _ = torch.unsafe_split(whole, 3)
    inner, _ = torch.unsafe_split(first, 2)
    torch.neg(inner, out=inner)
    return whole + 1


def _split_otherwise(x: Tensor) -> Any:
    whole = x * 1
    one, other = torch.unsafe_split(whole, 3)[0], torch.unsafe_split(whole, 4)[0]
    one.mul_(2)
    return other


REFUSED = {
    _view_written: REACHES,
    _view_written_by_name: REACHES,
    _input_written: REACHES,
    _beyond_its_end: REACHES,
    _part_written: SPLIT,
    _part_of_an_input_written: SPLIT,
    _whole_written: SPLIT,
    _part_of_a_part_written: SPLIT,
    _split_otherwise: SPLIT,
}


def _within(x: Tensor) -> Any:
    part = x.as_strided((2, 2), (2, 1))
    part.mul_(2)
    return x + 1, part


def _none_of_it(x: Tensor) -> Any:
    x.as_strided((0, 9), (1, 1), 9)
    return x.mul_(2)


def _only_read(x: Tensor) -> Any:
    return x + 1, x.as_strided((8,), (1,)) * 2


def _another_written(x: Tensor) -> Any:
    part, made = x.as_strided((8,), (1,)), x * 2
    return made.add_(1), part * 2


def _written_and_let_go(x: Tensor) -> Any:
    # as torch's own recurrent cells do
    first, second = torch.unsafe_chunk(x * 1, 2)
    return torch.cat([first.sigmoid_(), second.tanh_()])


GRAPHED = (_within, _none_of_it, _written_and_let_go)
AS_EAGER = (_only_read, _another_written, _between_its_elements)  # refused for other reasons


@pytest.mark.parametrize("function", [*REFUSED, *GRAPHED, *AS_EAGER])
def test_views_that_a_trace_takes_for_separate_are_as_in_eager(function: Callable[[Tensor], Any]) -> None:
    # GIVEN a parameterized function that makes such a view of a part of a larger tensor, and writes
    changed = pgk.parameterize(function)
    for seed in range(4):
        # WHEN it is called at other addresses
        found = []
        for call in (changed, function):
            around = (torch.arange(12.0) + seed).to(pgk.device())
            results = tree_leaves(call(around[2:7]))
            found.append([each.tolist() for each in (around, *results)])
        # THEN results, and the memory around its argument, are eager's
        assert found[0] == found[1]
    # AND what a trace would have wrong is refused, saying what to do; what it has right is graphed
    report = pgk.report(changed)
    if function in REFUSED:
        assert REFUSED[function] in str(report)
        assert report.kernels[0] == 0
    if function in GRAPHED:
        assert report.kernels[0] > 0
