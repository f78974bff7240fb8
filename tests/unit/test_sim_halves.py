"""Halves are rounded where CUDA's kernels round them, as one H200 did: mostly at the end, and in some at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paramgraph_kit.driver.sim.halves import running

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
NUMBERS = [-3.0, -0.5, 0.0, 0.25, 2.0, 8.0]

# By operation: float16's and bfloat16's results, and their gradients.
GIVEN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[list[float]], list[list[float]]]] = {
    "log_softmax": (
        lambda x: x.log_softmax(0),
        [[-11.0, -8.5, -8.0, -7.7539, -6.0039, -0.0035], [-11.0, -8.5, -8.0, -7.75, -6.0, -0.0035]],
        [[1.0, 0.9985, 0.998, 0.9976, 0.9854, -4.9805], [1.0, 1.0, 0.9961, 0.9961, 0.9844, -4.9688]],
    ),
    "logsigmoid": (
        F.logsigmoid,
        [[-3.0488, -0.9741, -0.6934, -0.5762, -0.127, -0.0003], [-3.0469, -0.9727, -0.6914, -0.5742, -0.127, -0.0003]],
        [[0.9526, 0.6226, 0.5, 0.4377, 0.1192, 0.0003], [0.9531, 0.6211, 0.5, 0.4375, 0.1191, 0.0003]],
    ),
    "tanh": (
        torch.tanh,
        [[-0.9951, -0.4622, 0.0, 0.2449, 0.9639, 1.0], [-0.9961, -0.4629, 0.0, 0.2451, 0.9648, 1.0]],
        [[0.0098, 0.7861, 1.0, 0.9399, 0.0708, 0.0], [0.0078, 0.7852, 1.0, 0.9414, 0.0703, 0.0]],
    ),
    "sigmoid": (
        torch.sigmoid,
        [[0.0474, 0.3774, 0.5, 0.562, 0.8809, 0.9995], [0.0474, 0.377, 0.5, 0.5625, 0.8789, 1.0]],
        [[0.0452, 0.235, 0.25, 0.2461, 0.1049, 0.0005], [0.0452, 0.2354, 0.25, 0.2461, 0.1064, 0.0]],
    ),
    "glu": (
        F.glu,
        [[-1.6865, -0.4404, 0.0], [-1.6875, -0.4395, 0.0]],
        [[0.562, 0.8809, 0.9995, -0.7383, -0.0525, 0.0], [0.5625, 0.8789, 1.0, -0.7383, -0.0525, 0.0]],
    ),
    "cumsum": (
        lambda x: (x * 8).cumsum(0),
        [[-24.0, -28.0, -28.0, -26.0, -10.0, 54.0]] * 2,
        [[48.0, 40.0, 32.0, 24.0, 16.0, 8.0]] * 2,
    ),
}


def rounded(tensor: torch.Tensor) -> list[float]:
    return [round(each, 4) for each in tensor.tolist()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", GIVEN)
def test_halves_are_rounded_as_on_an_h200(name: str, dtype: torch.dtype, sim: torch.device, cuda: Any) -> None:
    # GIVEN halves WHEN computed with, eagerly and in a graph THEN results and gradients are an H200's
    run, *wanted = GIVEN[name]
    x = torch.tensor(NUMBERS, dtype=dtype, device=sim, requires_grad=True)
    eager = run(x.detach())
    with cuda.graph(graph := cuda.CUDAGraph()):
        found = run(x)
        (grad,) = torch.autograd.grad(found.sum(), x)
    graph.replay()
    result, slope = (each[dtype is torch.bfloat16] for each in wanted)
    assert rounded(found) == rounded(eager) == result
    assert rounded(grad) == slope


def test_running_sums_are_rounded_at_each_number(sim: torch.device, cuda: Any) -> None:
    # GIVEN numbers that are lost beside a large one
    x = torch.tensor([256.0, 1, 1, 1, 0.5, 3], device=sim).to(torch.bfloat16)
    # WHEN summed up, in one row, in rows and in columns THEN each sum is rounded before the next, as on an H200
    with cuda.graph(graph := cuda.CUDAGraph()):
        found = x.cumsum(0), x.view(2, 3).cumsum(1), x.view(3, 2).cumsum(0)
    graph.replay()
    assert found[0].tolist() == [256.0, 256.0, 256.0, 256.0, 256.0, 260.0]
    assert found[1].tolist() == [[256.0, 256.0, 256.0], [1.0, 1.5, 4.5]]
    assert found[2].tolist() == [[256.0, 1.0], [256.0, 2.0], [256.0, 5.0]]
    # and in a type that was asked for nothing is
    assert x.cumsum(0, dtype=torch.float32).tolist() == [256.0, 257.0, 258.0, 259.0, 259.5, 262.5]


@pytest.mark.parametrize("shape", [(3, 5), (2, 33), (700, 90), (3, 1500)])
def test_a_tree_adds_up_what_one_by_one_does(shape: tuple[int, int]) -> None:
    # GIVEN rows of whole numbers, none of which is rounded WHEN added up by a tree THEN the sums are the exact ones
    x = torch.arange(shape[0] * shape[1]).view(shape) % 5
    assert torch.equal(running(x, 1, torch.add), x.cumsum(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_product_is_rounded_once(dtype: torch.dtype, sim: torch.device) -> None:
    # GIVEN halves WHEN multiplied with one another THEN their product is the exact one, rounded
    x = (torch.arange(16) % 7 - 3).to(dtype) / 8 + 1
    assert x.to(sim).prod().item() == x.double().prod().to(dtype).item()
    assert x.to(sim).view(4, 4).prod(1).tolist() == x.double().view(4, 4).prod(1).to(dtype).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gelu_of_infinity_is_infinity(dtype: torch.dtype, sim: torch.device) -> None:
    # GIVEN what is not finite WHEN given to gelu, by erf and by tanh THEN infinity stays so, on whatever CPU
    x = torch.tensor([torch.inf, 0.0, -torch.inf, torch.nan], dtype=dtype, device=sim)
    for way in ("none", "tanh"):
        found = F.gelu(x, approximate=way).tolist()
        assert found[:2] == [torch.inf, 0.0]
        assert all(each != each for each in found[2:])  # NaN
