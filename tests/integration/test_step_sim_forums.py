"""Steps as strangers write them, on the simulator: from a graph with the right bits, or refused with what to do."""

# mypy: disable-error-code="no-untyped-call, index, operator, unused-ignore"
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import paramgraph_kit as pgk
from paramgraph_kit.backend.report import Report
from tests.integration import step_forums, step_hidden
from tests.integration.step_parts import Program, values_of
from tests.integration.test_step_sim import equal

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated"),
    pytest.mark.filterwarnings("ignore"),  # of deprecated functions, which people call
]
STEPS = 14
ALSO_COMPILED = ("constant eager", "constant ours", "constant_vector aot", "weighted_loss aot", "weighted_loss eager")
SMALLER = range(5, 9)  # of another shape: eager ones, a capture and a launch


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def seeded(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)


def fewer(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same batch without its last row, where all of it has rows."""
    tensors = [x for x in pytree.tree_leaves(data) if isinstance(x, torch.Tensor)]
    if len({len(x) for x in tensors if x.dim()}) != 1 or len(tensors[0]) < 4:
        return data
    return pytree.tree_map(lambda x: x[:-1] if isinstance(x, torch.Tensor) and x.dim() else x, data)  # type: ignore[no-any-return]


def beside(make: Callable[[], Program]) -> Report:
    """Steps from graphs beside a twin without, for a while in another shape, all compared after each."""
    programs = []
    for _ in range(2):
        seeded(7)
        programs.append(make())
    ours, theirs = programs
    step = pgk.parameterize(ours.step, state=ours.state)
    positions = [pgk.cuda.get_rng_state()] * 2
    for number in range(STEPS):
        results = []
        for n, (call, program) in enumerate(((step, ours), (theirs.step, theirs))):
            pgk.cuda.set_rng_state(positions[n])
            seeded(number)
            data = program.batch(number)
            results.append(call(*(fewer(data) if number in SMALLER else data)))
            program.between(number)
            positions[n] = pgk.cuda.get_rng_state()
        assert equal(*results), f"results of step {number} differ"
        assert torch.equal(*positions), f"random positions after step {number} differ"
        assert equal(values_of(ours), values_of(theirs)), f"state after step {number} differs"
    return pgk.report(step)


# Every sixth at each change; `make sweeps` takes the others.
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.sweep] * (n % 6 > 0)) for n, each in enumerate(step_forums.GRAPHED)],
)
def test_steps_of_strangers_are_graphed_bit_for_bit(name: str) -> None:
    report = beside(step_forums.GRAPHED[name])
    assert report.reasons == ()
    assert report.rows[0].launches >= (4 if name == "accumulation by a flag" else 8)


@pytest.mark.parametrize("name", step_forums.REFUSED)
def test_what_no_graph_may_take_is_refused_with_what_to_do(name: str) -> None:
    make, code, words = step_forums.REFUSED[name]
    report = beside(make)
    assert report.reasons[0].code == code
    assert words in report.reasons[0].message
    assert report.rows[0].launches == 0


# Of what is compiled within a step each compiler has one constant of its own at each change, the others are for sweeps.
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.sweep] * (each in ALSO_COMPILED)) for each in step_hidden.HIDDEN]
)
def test_tensors_outside_models_are_found(name: str) -> None:
    report = beside(step_hidden.HIDDEN[name])
    assert report.reasons == ()
    assert report.rows[0].launches >= 8


@pytest.mark.parametrize("name", step_hidden.REFUSED)
def test_tensors_that_nothing_leads_to_are_refused_with_what_to_do(name: str) -> None:
    make, code, words = step_hidden.REFUSED[name]
    report = beside(make)
    assert report.reasons[0].code == code
    assert words in report.reasons[0].message
    assert report.rows[0].launches == 0


def test_a_cached_table_that_is_made_anew_counts() -> None:
    # GIVEN a step that reads a table which a cached function keeps, from a graph
    scale = [1.0]
    kept = step_hidden.scaled_table(scale)
    program = step_hidden.stepped(lambda m, x: m.inner(x * kept(8)))
    twin = step_hidden.stepped(lambda m, x: m.inner(x * kept(8)))
    step = pgk.parameterize(program.step, state=program.state)
    for number in range(8):
        # WHEN it is forgotten, and computed again with another number
        if number == 5:
            scale[0] = 3.0
            kept.cache_clear()
        # THEN the next step reads the new one
        assert equal(step(*program.batch(number)), twin.step(*twin.batch(number)))
    assert pgk.report(step).rows[0].launches >= 4


def test_no_second_backward_pass_goes_through_what_a_launch_returns() -> None:
    # GIVEN a step that returns its loss as it is, after the backward pass
    program, twin = step_forums.attached(), step_forums.attached()
    step = pgk.parameterize(program.step, state=program.state)
    for number in range(5):
        losses = [call(*program.batch(number)) for call in (step, twin.step)]
    # WHEN somebody asks for another one THEN that is an error, as it is without a graph, and all else is the same
    for loss in losses:
        assert loss.requires_grad
        assert not loss.is_leaf
        assert loss.detach().item() == losses[1].item()
        with pytest.raises(RuntimeError, match="a second time"):
            (loss * 2).backward()
    assert pgk.report(step).rows[0].launches == 3


def test_a_result_that_can_still_be_gone_back_through_is_refused() -> None:
    program = step_forums.attached()
    model, optimizer = program.model, program.state[1]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        optimizer.step()
        return loss

    whole = pgk.parameterize(step, state=program.state)
    for number in range(4):
        whole(*program.batch(number))
    (reason,) = pgk.report(whole).reasons
    assert reason.code == "requires-grad"
    assert "return loss.detach()" in reason.message
