"""Random numbers of the device are CUDA's: those that every GPU gives for a seed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim import philox
from paramgraph_kit.driver.sim.rng import THREADS

DEVICE = pgk.device()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

# torch.manual_seed(0) and then torch.rand(10, device="cuda") twice, or torch.randn(3, 8, device="cuda"), on any GPU.
UNIFORM = [0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203, 0.2290, 0.9096]
NEXT = [0.9722, 0.7910, 0.4690, 0.3300, 0.3345, 0.3783, 0.7640, 0.6405, 0.1103, 0.3594]
NORMAL = [
    [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284],
    [-1.0745, -0.3631, -1.6711, 2.2655, 0.3117, -0.1842, 1.2866, 1.1820],
    [-0.1271, 1.2169, 1.4353, 1.0605, -0.4941, -1.4244, -0.7244, -1.2973],
]


def test_the_words_are_philoxs() -> None:
    # GIVEN what the authors of the generator publish for a key and a counter of zeros, and of ones
    ones = np.full(1, 2**64 - 1, dtype=np.uint64)
    # WHEN they are computed THEN they are the same
    zeros = [f"{int(word[0]):08x}" for word in philox.words(0, np.zeros(1), np.zeros(1))]
    assert zeros == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    assert [f"{int(word[0]):08x}" for word in philox.words(2**64 - 1, ones, ones)] == [
        "408f276d",
        "41c83b0e",
        "a20bc7c6",
        "6d5451fd",
    ]


def test_numbers_are_those_of_every_gpu(cuda: Any) -> None:
    # GIVEN a seed WHEN numbers are drawn, eagerly and by a graph THEN they are CUDA's
    torch.manual_seed(0)
    drawn = [torch.rand(10, device=DEVICE) for _ in range(2)]
    torch.testing.assert_close(torch.stack(drawn).cpu(), torch.tensor([UNIFORM, NEXT]), atol=6e-5, rtol=0)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = torch.rand(10, device=DEVICE)
    torch.manual_seed(0)
    for each in drawn:
        graph.replay()
        assert torch.equal(y, each)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.randn(3, 8, device=DEVICE).cpu(), torch.tensor(NORMAL), atol=6e-5, rtol=0)


def test_a_view_is_filled_in_the_order_of_its_memory() -> None:
    # GIVEN a transposed tensor WHEN it is filled THEN memory has what it has otherwise
    torch.manual_seed(3)
    straight = torch.rand(3, 5, device=DEVICE)
    torch.manual_seed(3)
    turned = torch.empty(3, 5, device=DEVICE).t().uniform_()
    assert torch.equal(turned.t(), straight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bounds_and_moments(dtype: torch.dtype) -> None:
    # GIVEN more numbers than one round of all threads gives
    torch.manual_seed(1)
    count = THREADS + 1000
    # WHEN they are drawn THEN they are within bounds, and their moments are a distribution's
    even = torch.empty(count, device=DEVICE, dtype=dtype).uniform_(2, 4)
    assert bool(((even >= 2) & (even < 4)).all())
    assert float(even.double().mean()) == pytest.approx(3, abs=0.02)
    bell = torch.empty(count, device=DEVICE, dtype=dtype).normal_(1, 2).double()
    assert float(bell.mean()) == pytest.approx(1, abs=0.02)
    assert float(bell.std()) == pytest.approx(2, abs=0.02)
    late = torch.empty(count, device=DEVICE, dtype=dtype).exponential_(2).double()
    assert float(late.min()) > 0
    assert float(late.mean()) == pytest.approx(0.5, abs=0.01)
    coins = torch.empty(count, device=DEVICE, dtype=dtype).bernoulli_(0.25).double()
    assert float(coins.mean()) == pytest.approx(0.25, abs=0.01)
    # and neighbours are not alike
    pairs = torch.stack((bell[:-1], bell[1:])).cpu()
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.01


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-3, 4), (0, 2**40)])
def test_whole_numbers(low: int, high: int) -> None:
    # GIVEN bounds, narrow and wide WHEN whole numbers are drawn THEN they are within, and reach all over
    torch.manual_seed(1)
    drawn = torch.randint(low, high, (2000,), device=DEVICE)
    assert low <= int(drawn.min()) < int(drawn.max()) < high
    assert float(drawn.double().mean()) == pytest.approx((low + high - 1) / 2, abs=(high - low) / 20)


def test_choices_follow_their_weights() -> None:
    # GIVEN weights of which some are nothing WHEN different places are chosen THEN never these, and others as weighed
    torch.manual_seed(1)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0], device=DEVICE).expand(4000, 5)
    first = torch.multinomial(weights, 1).squeeze(1)
    shares = (first.bincount(minlength=5) / 4000).tolist()
    assert shares == pytest.approx([0, 0.1, 0.3, 0, 0.6], abs=0.03)
    three = torch.multinomial(weights, 3).sort(1).values
    assert bool((three == torch.tensor([1, 2, 4], device=DEVICE)).all())
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        torch.multinomial(torch.tensor([-1.0, 2.0], device=DEVICE), 1)


RECORDED = json.loads((Path(__file__).parents[1] / "data" / "h200_draws.json").read_text())
DRAWS: dict[str, Callable[[int], torch.Tensor]] = {
    "rand": lambda n: torch.rand(n, device=DEVICE),
    "randd": lambda n: torch.rand(n, device=DEVICE, dtype=torch.float64),
    "randh": lambda n: torch.rand(n, device=DEVICE, dtype=torch.float16),
    "randb": lambda n: torch.rand(n, device=DEVICE, dtype=torch.bfloat16),
    "randn": lambda n: torch.randn(n, device=DEVICE),
    "randnd": lambda n: torch.randn(n, device=DEVICE, dtype=torch.float64),
    "randnh": lambda n: torch.randn(n, device=DEVICE, dtype=torch.float16),
    "randint": lambda n: torch.randint(0, 1000, (n,), device=DEVICE),
    "randint32": lambda n: torch.randint(-5, 9, (n,), device=DEVICE, dtype=torch.int32),
    "randbig": lambda n: torch.randint(0, 2**40, (n,), device=DEVICE),
    "bern": lambda n: torch.empty(n, device=DEVICE).bernoulli_(0.3),
    "expo": lambda n: torch.empty(n, device=DEVICE).exponential_(2.0),
    "unif": lambda n: torch.empty(n, device=DEVICE).uniform_(-2, 3),
    "norm": lambda n: torch.empty(n, device=DEVICE).normal_(1, 2),
    "rnd": lambda n: torch.empty(n, device=DEVICE).random_(0, 100),
    "multi": lambda _: torch.multinomial(torch.arange(1.0, 11.0, device=DEVICE).repeat(4, 1), 3),
    "multione": lambda _: torch.multinomial(torch.arange(1.0, 11.0, device=DEVICE).repeat(4, 1), 1),
}


@pytest.mark.parametrize("drawn", RECORDED["values"])
def test_numbers_are_those_that_a_gpu_drew(drawn: str) -> None:
    # GIVEN what an H200 drew at a seed, up to 300,000 numbers of several kinds
    name, seed, count = drawn.split()
    torch.manual_seed(int(seed))
    # WHEN as many are drawn here THEN those that were looked at are the same, up to the last digits of a logarithm
    seen = DRAWS[name](int(count)).cpu().double().flatten()
    for place, value in zip(RECORDED["places"], RECORDED["values"][drawn], strict=True):
        assert (value is None) == (place >= len(seen))
        if value is not None:
            assert seen[place].item() == pytest.approx(value, rel=1e-5, abs=2e-7)


FIRST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "any": lambda x: x.random_(),
    "geo": lambda x: x.geometric_(0.3),
    "lognorm": lambda x: x.log_normal_(0.5, 0.25),
    "cauchy": lambda x: x.cauchy_(1.0, 2.0),
    "normt": lambda x: torch.normal(x, x),
    "bernt": lambda x: x.bernoulli_(x * 0.5),
    "perm": lambda x: torch.randperm(len(x), device=DEVICE),
    "again": lambda _: torch.multinomial(torch.tensor([0.1, 0.2, 0.3, 0.4], device=DEVICE), 6, replacement=True),
    "againrows": lambda _: torch.multinomial(
        torch.tensor([0.1, 0.2, 0.3, 0.4], device=DEVICE).expand(2, 4), 3, replacement=True
    ),
    "poisson": lambda x: torch.poisson(x * 4),
    "gamma": lambda x: torch._standard_gamma(x * 2),
    "binomial": lambda x: torch.binomial(x * 9, x * 0.5),
    "rrelu": lambda x: torch.nn.functional.rrelu(-x, training=True),
}
KINDS = {"d": torch.float64, "h": torch.float16, "b": torch.bfloat16, "i": torch.int32, "l": torch.int64}
KINDS |= {"u": torch.uint8, "bool": torch.bool}


@pytest.mark.parametrize("drawn", RECORDED["first"])
def test_numbers_of_other_distributions_are_those_that_a_gpu_drew(drawn: str) -> None:
    # GIVEN what an H200 drew at a seed of other distributions, to four digits
    name, seed, count = drawn.split()
    kind = next((kind for kind in KINDS if name.removesuffix(kind) in FIRST and name not in FIRST), "")
    x = torch.ones(int(count), device=DEVICE, dtype=KINDS.get(kind, torch.float32))
    torch.manual_seed(int(seed))
    # WHEN as many are drawn here THEN they are the same
    seen = FIRST[name.removesuffix(kind) if kind else name](x).cpu().double().flatten()
    expected = torch.tensor(RECORDED["first"][drawn], dtype=torch.float64)
    torch.testing.assert_close(seen[: len(expected)], expected, atol=6e-5, rtol=6e-5)


def _ones(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*size, device=DEVICE, dtype=dtype)


DROPPED: dict[str, Callable[[], torch.Tensor]] = {
    "16": lambda: _ones(16),
    "5": lambda: _ones(5),
    "6": lambda: _ones(6),
    "4x4 t": lambda: _ones(4, 5).t(),
    "8 slice": lambda: _ones(10)[1:9],
    "8 slice2": lambda: _ones(10)[2:10],
    "step": lambda: _ones(16)[::2],
    "half 16": lambda: _ones(16, dtype=torch.float16),
    "bf 8": lambda: _ones(8, dtype=torch.bfloat16),
    "half 2": lambda: _ones(2, dtype=torch.float16),
    "double 4": lambda: _ones(4, dtype=torch.float64),
    "channels": lambda: _ones(1, 4, 2, 2).to(memory_format=torch.channels_last),
    "expand": lambda: _ones(1).expand(8),
}


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_keeps_what_a_gpu_keeps(name: str) -> None:
    # GIVEN tensors that a kernel reads one, two, four or eight numbers at once of WHEN half of each is dropped
    x = DROPPED[name]()
    torch.manual_seed(7)
    kept = torch.nn.functional.dropout(x, 0.5) != 0
    # THEN what stays is what stayed on an H200
    assert "".join(str(int(each)) for each in kept.flatten().tolist()) == RECORDED["dropout 7"]["kept"][name]


@pytest.mark.parametrize("size", RECORDED["dropout 7"]["sums"])
def test_dropout_of_much_keeps_as_many_as_a_gpu_does(size: str) -> None:
    # GIVEN more numbers than threads, or as many as these take without rest WHEN three of ten are dropped
    count, _, half = size.partition(" ")
    torch.manual_seed(7)
    x = _ones(int(count), dtype=torch.float16 if half else torch.float32)
    # THEN as many stay as on an H200
    assert int((torch.nn.functional.dropout(x, 0.3) != 0).sum()) == RECORDED["dropout 7"]["sums"][size]


def test_both_parts_of_complex_numbers_are_drawn() -> None:
    # GIVEN a seed WHEN complex numbers are drawn THEN their parts are what real ones would be
    torch.manual_seed(4)
    found = torch.view_as_real(torch.rand(2, device=DEVICE, dtype=torch.complex64)).flatten()
    torch.manual_seed(4)
    assert torch.equal(found, torch.rand(4, device=DEVICE))


PLACED: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "poisson": lambda g: torch.poisson(_ones(4), generator=g),
    "poisson of large means": lambda g: torch.poisson(_ones(4) * 100, generator=g),
    "binomial": lambda g: torch.binomial(_ones(4) * 5, _ones(4) * 0.5, generator=g),
    "binomial of many hits": lambda g: torch.binomial(_ones(4) * 100, _ones(4) * 0.5, generator=g),
    "gamma": lambda g: torch._standard_gamma(_ones(4), generator=g),
}


@pytest.mark.parametrize("name", PLACED)
def test_a_generator_that_is_given_by_its_place_alone_decides(name: str) -> None:
    # GIVEN an operation that takes its generator by place
    host = torch.get_rng_state()
    # WHEN it draws twice from generators of one seed, with other numbers of torch's between
    found = [PLACED[name](torch.Generator(DEVICE).manual_seed(3))]
    assert torch.equal(torch.get_rng_state(), host)
    torch.manual_seed(9)
    found.append(PLACED[name](torch.Generator(DEVICE).manual_seed(3)))
    # THEN both times the same is drawn, and none of it from the host's generator
    assert torch.equal(*found)


def test_a_gamma_number_of_no_number_is_none() -> None:
    # GIVEN no number WHEN a gamma number of it is drawn THEN it is not the least one of its type
    assert torch._standard_gamma(_ones(2) * float("nan")).isnan().all()


def test_a_generator_takes_what_cudas_takes_for_its_state() -> None:
    # GIVEN a generator of the device WHEN it is given what is no state, seed or offset THEN it refuses that [H200]
    generator: Any = torch.Generator(device=DEVICE).manual_seed(5)
    state = generator.get_state()
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: generator.set_state(torch.Generator().get_state()), RuntimeError, "RNG state is wrong size"),
        (lambda: generator.set_state(state.to(DEVICE)), TypeError, "RNG state must be a torch.ByteTensor"),
        (lambda: generator.set_state(state.float()), TypeError, "RNG state must be a torch.ByteTensor"),
        (lambda: generator.manual_seed(2**65), ValueError, "Overflow when unpacking long long"),
        (lambda: generator.manual_seed(1.5), RuntimeError, "manual_seed expected a long, but got float"),
        (lambda: generator.set_offset(1.0), RuntimeError, "manual_offset expected a long, but got float"),
    ]
    for call, kind, words in refused:
        with pytest.raises(kind, match=words):
            call()
    # WHEN its offset is below zero THEN that counts from the end of 64 bits, also in its state and in copies
    generator.set_offset(-4)
    assert generator.clone_state().initial_seed() == 5
    assert copy.deepcopy(generator).get_offset() == generator.graphsafe_get_state().get_offset() == 2**64 - 4
    # WHEN its state is a seed alone THEN it starts there
    generator.set_state(state[:8])
    assert (generator.initial_seed(), generator.get_offset()) == (5, 0)
