"""Random generators and iterators that a program holds: what takes from one is in no graph, and takes as ever."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

Draw = Callable[[], float]
WIDTH, CALLS = 8, 8


def _python() -> Draw:
    return random.Random(7).random


def _numpy() -> Draw:
    generator = np.random.default_rng(7)
    return lambda: float(generator.normal())


def _bits() -> Draw:
    bits = np.random.MT19937(7)
    return lambda: float(bits.random_raw() % 1000)


def _old_numpy() -> Draw:
    state = np.random.RandomState(7)
    return lambda: float(state.rand())


def _torch() -> Draw:
    generator = torch.Generator().manual_seed(7)
    return lambda: float(torch.rand((), generator=generator))


def _sobol() -> Draw:
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=7)  # type: ignore[no-untyped-call]
    return lambda: float(engine.draw(1))


def _two() -> Draw:
    python, generator = random.Random(7), torch.Generator().manual_seed(7)
    return lambda: python.random() + float(torch.rand((), generator=generator))


class Scaled(nn.Module):
    """A layer whose result is scaled by what a generator of the host draws."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, WIDTH), draw

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) * self.draw()
        return result


class Skipping(Scaled):
    """The layer runs where the generator says so."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.draw() % 1 < 0.5 else x * 2


def made(kind: type[Scaled], draw: Callable[[], Draw]) -> Scaled:
    torch.manual_seed(0)
    return kind(draw()).to(pgk.device())


def data(seed: int) -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def codes(what: Any) -> set[str]:
    return {reason.code for reason in pgk.report(what).reasons}


@pytest.mark.parametrize("kind", [Scaled, Skipping])
@pytest.mark.parametrize("draw", [_python, _numpy, _bits, _old_numpy, _torch, _two])
def test_a_parameterized_model_draws_what_eager_draws(kind: type[Scaled], draw: Callable[[], Draw]) -> None:
    # GIVEN two models alike, each with a generator of its own WHEN one is parameterized and both are called
    eager, model = made(kind, draw), made(kind, draw)
    run = pgk.parameterize(model)
    with torch.no_grad():
        for seed in range(CALLS):
            # THEN each call has the numbers that are its turn
            assert torch.equal(run(data(seed)), eager(data(seed)))
    # AND the reason is told
    assert codes(run) <= {"host-random", "data-dependent"}
    assert codes(run)


@pytest.mark.parametrize("kind", [Scaled, Skipping])
@pytest.mark.parametrize("draw", [_python, _numpy, _bits, _old_numpy, _torch, _sobol])
def test_a_step_draws_what_eager_draws(kind: type[Scaled], draw: Callable[[], Draw]) -> None:
    def step_of(model: Scaled) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            result: Tensor = loss.detach()
            return result

        return step

    # GIVEN the same training twice WHEN one's steps are parameterized
    eager, model = made(kind, draw), made(kind, draw)
    plain, step = step_of(eager), pgk.parameterize(step_of(model), state=[model])
    for seed in range(CALLS):
        # THEN losses are equal, and so are the parameters
        assert torch.equal(step(data(seed)), plain(data(seed)))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters(), strict=True))
    assert codes(step) == {"host-random"}


def test_a_generator_that_is_there_and_does_not_draw_stands_in_nobody_s_way() -> None:
    # GIVEN a model that draws while it is made and not when it is called
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(3)
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.order = self.rng.permutation(WIDTH).tolist()

        def forward(self, x: Tensor) -> Tensor:
            if self.rng is None:
                raise ValueError
            result: Tensor = self.layer(x)[:, self.order]
            return result

    model = Shuffled().to(pgk.device())
    run = pgk.parameterize(model)
    # WHEN called THEN it is launched
    with torch.no_grad():
        for seed in range(4):
            assert torch.equal(run(data(seed)), model(data(seed)))
    assert sum(row.launches for row in pgk.report(run).rows) >= 2


def _generator() -> Iterator[float]:
    rate = 1.0
    while True:
        yield rate
        rate *= 0.5


@pytest.mark.parametrize(
    "source",
    [
        _generator,
        lambda: itertools.cycle([1.0, 0.5, 0.25]),
        lambda: iter([1.0 / n for n in range(1, 30)]),
        lambda: map(float, itertools.count(1)),
        lambda: (1.0 / n for n in itertools.count(1)),
        lambda: zip(itertools.count(1), itertools.count(2), strict=False),
    ],
)
@pytest.mark.parametrize("loop", [False, True])
def test_a_step_takes_from_an_iterator_what_eager_takes(source: Callable[[], Iterator[Any]], loop: bool) -> None:
    # GIVEN the same step twice, each with an iterator of its own that it takes one item of
    def step_of(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        items = source()

        def step(x: Tensor) -> Tensor:
            item: Any = 0.0
            if loop:
                for each in items:
                    item = each
                    break
            else:
                item = next(items)
            with torch.no_grad():
                layer.weight.add_(x.sum(0) * (item[0] if isinstance(item, tuple) else item))
                result: Tensor = layer(x)
            return result

        return step

    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH).to(pgk.device()) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    plain, step = step_of(layers[0]), pgk.parameterize(step_of(layers[1]), state=[layers[1]])
    # WHEN one is parameterized THEN nothing was taken from it but by the calls themselves
    for seed in range(CALLS):
        assert torch.equal(step(data(seed)), plain(data(seed)))
    assert codes(step) == {"side-effect"}


def test_an_iterator_that_a_step_makes_for_itself_stands_in_nobody_s_way() -> None:
    # GIVEN a step that asks for the first parameter, as many do
    layer = nn.Linear(WIDTH, WIDTH).to(pgk.device())

    def step(x: Tensor) -> Tensor:
        result: Tensor = layer(x.to(next(layer.parameters()).dtype)).detach()
        return result

    run = pgk.parameterize(step, state=[layer])
    for seed in range(5):
        assert torch.equal(run(data(seed)), layer(data(seed)).detach())
    assert sum(row.launches for row in pgk.report(run).rows) >= 2


def test_numbers_of_the_system_are_not_frozen() -> None:
    # GIVEN a step that draws from the system, which has no state to compare
    system = random.SystemRandom()
    layer = nn.Linear(WIDTH, WIDTH).to(pgk.device())
    drawn: list[float] = []

    def step(x: Tensor) -> Tensor:
        drawn.append(system.random())
        result: Tensor = layer(x).detach() * drawn[-1]
        return result

    run = pgk.parameterize(step, state=[layer])
    for seed in range(5):
        y = run(data(seed))
        assert torch.equal(y, layer(data(seed)).detach() * drawn[-1])
    assert len(set(drawn)) == 5
