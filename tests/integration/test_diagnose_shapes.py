"""Odd things that are given to diagnose: what runs nothing, fails by itself, or has no name of its own."""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.rewritten import run

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
X = torch.ones(3, device=pgk.device())


async def later(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0)
    return x * 2


def rows(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * x.sum().item()


async def rows_later(x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
    yield x * x.sum().item()


async def all_of(each: Any) -> list[Any]:
    return [one async for one in each]


def fails(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("by itself")


@pytest.mark.parametrize("function", [later, rows, rows_later])
def test_what_runs_nothing_is_told_how_to_be_run_and_no_fix_is_tried(function: Any) -> None:
    # GIVEN a function that, called, only makes what somebody has to run
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        # WHEN it is diagnosed, with a fix
        found = pgk.diagnose(function, X, fix=True)
        gc.collect()
    # THEN that is said, with what runs it, and nothing was made again and again that nobody awaits
    assert found.codes == ("empty-graph",)
    assert f"calling {function.__name__} makes " in found.failures[0].message
    assert found.fix is None
    assert not heard
    # WHEN the advice is followed THEN what the function does on the device is seen
    said = found.failures[0].fix.rpartition("diagnose(")[2].removesuffix(", *args)")
    loop = asyncio.new_event_loop()
    runs = eval(said, {"loop": loop, "all_of": all_of, function.__name__: function})
    assert pgk.diagnose(runs, X).codes == (() if function is later else ("sync-item",))
    loop.close()


def test_inputs_that_were_left_on_the_cpu_are_named() -> None:
    # GIVEN a tensor of the CPU WHEN a function is diagnosed with it THEN the message says that this is why nothing ran
    found = pgk.diagnose(lambda x: x * 2, torch.ones(2))
    assert found.codes == ("empty-graph",)
    assert "the tensor that it is given is on the CPU" in found.failures[0].message


@pytest.fixture
def _interrupted_as_ever() -> Iterator[None]:
    """What runs in the background ignores the signal, and asyncio.run puts no handler in its place there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupted_as_ever")
def test_asyncio_run_makes_text_of_a_result_and_is_told_so() -> None:
    # GIVEN a function that runs a coroutine by asyncio.run, whose signal handler is turned into text
    def step(x: torch.Tensor) -> torch.Tensor:
        return asyncio.run(later(x))

    # WHEN it is diagnosed THEN what to write stands there
    found = pgk.diagnose(step, X)
    assert found.codes == ("print",)
    assert "here `loop.run_until_complete(later(x))`" in str(found)
    # WHEN that is done THEN nothing is found
    loop = asyncio.new_event_loop()
    assert not pgk.diagnose(lambda x: loop.run_until_complete(later(x)), X)
    loop.close()


def test_what_fails_by_itself_is_said_once() -> None:
    # GIVEN a function that raises WHEN a fix is asked for THEN the line and its error come once
    fix = pgk.diagnose(fails, X, fix=True).fix
    assert fix is not None
    assert len(fix.instead) == 1
    assert "ValueError: by itself" in fix.instead[0]


def test_headings_have_names_that_users_write() -> None:
    # GIVEN functions of torch's own and partial ones WHEN diagnosed THEN the heading has their public names
    class Odd:
        def __getattr__(self, name: str) -> Any:
            return Odd()

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    cases = {"torch.sum": torch.sum, "torch.relu": torch.relu, "fails": functools.partial(fails), "Odd": Odd()}
    cases["torch.nn.functional.linear"] = torch.nn.functional.linear
    for name, function in cases.items():
        found = pgk.diagnose(function, X)
        assert str(found).startswith(f"{name}: "), str(found).splitlines()[0]


SOLVE = """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(3, 4, device=device),)
def f(x):
    count = 0
    while (err := (net(x) - x).abs().max().item()) > 1e-3 and count < 4:
        x = x + 0.5 * (net(x) - x)
        count += 1
    return x, [row for row in x if row.sum() > err]
"""
BRANCH = """
net = nn.Linear(4, 4).to(device)
table = torch.zeros(4, 4, device=device)
filled = torch.tensor(False, device=device)
args = (torch.randn(3, 4, device=device),)
def f(x):
    if not filled:
        table.copy_(x.T @ x)
        filled.fill_(True)
    return net(x) @ table
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SOLVE, "nothing runs on the device before line 15: make what the device does in one round (lines 16 to 17)"),
        (BRANCH, "nothing runs on the device before line 16: make what each way does (from line 17 on) a function"),
    ],
)
def test_what_comes_first_is_not_told_to_end_a_graph_before_it(text: str, said: str, tmp_path: Path) -> None:
    # GIVEN a function that begins with what the host has to know WHEN it is diagnosed
    names = run(text, tmp_path)
    told = str(pgk.diagnose(names["f"], *names["args"]))
    # THEN no graph is to end before its first line, where none has begun
    assert said in told
    assert f"captured before {said.partition('before ')[2].partition(':')[0]}" not in told


LAMBDA = """
net = nn.Linear(4, 4).to(device)
class State: n = 0
state = State()
def made(model, output=lambda y, loss: loss.item()):
    def f(x):
        y = model(x)
        state.last = output(y, y.sum())
        return state.last
    return f
f = made(net)
args = (torch.randn(3, 4, device=device),)
"""


def test_a_lambda_that_reads_is_told_what_to_give(tmp_path: Path) -> None:
    # GIVEN a factory whose default is a lambda that makes a number of the loss WHEN its step is diagnosed
    names = run(LAMBDA, tmp_path)
    told = str(pgk.diagnose(names["f"], *names["args"]))
    # THEN what the lambda is to give stands there
    assert "`lambda y, loss: loss.detach()` gives the tensor" in told


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"weight": True, "label_smoothing": 0.1}, ("dynamic-shape",)),
        ({"weight": True, "label_smoothing": 0.1, "reduction": "sum"}, ()),
        ({"weight": True}, ()),
        ({"label_smoothing": 0.1}, ()),
    ],
)
def test_a_weighted_loss_with_smoothing_picks_its_labels(options: dict[str, Any], codes: tuple[str, ...]) -> None:
    # GIVEN a loss whose mean with weights and smoothing picks the labels, but where a mode sees its operations
    weight = torch.tensor([1.0, 2.0, 3.0], device=X.device)
    given = {**options, "weight": weight} if "weight" in options else options
    labels = torch.tensor([0, 2, 1, 1], device=X.device)

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, labels, **given)

    # WHEN it is diagnosed THEN that is told, and nothing of the others
    assert pgk.diagnose(step, torch.randn(4, 3).to(X.device)).codes == codes
